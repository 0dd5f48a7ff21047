"""fedeqx: federated and group-structured machine learning in JAX."""
