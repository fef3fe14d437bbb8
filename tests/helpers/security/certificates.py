"""A certificate authority of a test's own, and what it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass(frozen=True)
class Authority:
    folder: Path
    name: str = "a test's authority"
    key: rsa.RSAPrivateKey = field(default_factory=_key)

    @property
    def certificate(self) -> Path:
        """Its own, for those who shall trust it."""
        file = self.folder / "ca.pem"
        if not file.exists():
            file.write_bytes(self._signed(self.name, self.key, is_ca=True))
        return file

    def sign(self, name: str, *, address: str = "127.0.0.1", hours: int = 6) -> tuple[Path, Path]:
        """Files of a certificate for the name, which is also good for the address, and of its key.

        It is valid for so many hours; below 0 it has expired.
        """
        key = _key()
        certificate, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(self._signed(name, key, is_ca=False, address=address, hours=hours))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, key_file

    def _signed(
        self, name: str, key: rsa.RSAPrivateKey, *, is_ca: bool, address: str = "127.0.0.1", hours: int = 6
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_called(name))
            .issuer_name(_called(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=24))
            .not_valid_after(now + datetime.timedelta(hours=hours))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if not is_ca:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(address))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
