"""`python -m fedeqx.cli`, for where the `fedeqx` script is not on the path."""

from . import main

raise SystemExit(main())
