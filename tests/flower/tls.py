"""Certificates and keys of a deployment: an authority, a SuperLink, and its nodes."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Tls:
    """Files in a folder, as a user would make them with OpenSSL."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self.folder = folder
        self.certificate_of_ca, self.certificate = folder / "ca.crt", folder / "server.crt"
        self.key = folder / "server.key"
        ca_key, ca_name = self._private_key(folder / "ca.key"), _name("a test's authority")
        ca = _certificate(ca_name, ca_name, ca_key, ca_key, authority=True)
        self.certificate_of_ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        key = self._private_key(self.key)
        certificate = _certificate(_name("localhost"), ca_name, key, ca_key, authority=False)
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def node_key(self, name: str) -> Path:
        """The private key of a node, made when first asked for."""
        file = self.folder / f"{name}.key"
        if not file.exists():
            key = self._private_key(file, serialization.PrivateFormat.OpenSSH)
            public = key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
            self.public_key(name).write_bytes(public)
        return file

    def public_key(self, name: str) -> Path:
        return self.folder / f"{name}.pub"

    @staticmethod
    def _private_key(
        file: Path, form=serialization.PrivateFormat.PKCS8
    ) -> ec.EllipticCurvePrivateKey:
        key = ec.generate_private_key(ec.SECP384R1())
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                form,
                serialization.NoEncryption(),
            )
        )
        return key


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(subject, issuer, key, signer, *, authority: bool) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return builder.sign(signer, hashes.SHA256())
