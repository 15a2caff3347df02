"""Certificates of a private authority, made with openssl, and how a broker is opened with them."""

import subprocess
import time
from urllib.parse import urlsplit

import pytest

from brokers.rabbitmq.rabbit_stage import at, with_options
from carom.brokers.rabbitmq import RabbitBroker
from carom.errors import BrokerUnavailable
from carom.runtime.clock import RealClock


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder, name):
        self.folder = folder
        self.name = name
        # Since Python 3.13 an authority has to say that it signs, and a certificate by which of its keys it was signed.
        purpose = ["-addext", "keyUsage=critical,keyCertSign,cRLSign", "-days", "2", "-subj", f"/CN={name}"]
        self.run("req", "-x509", *self.new_key(name), "-out", self.file(name), *purpose)

    def file(self, name):
        return str(self.folder / f"{name}.pem")

    def key(self, name):
        return str(self.folder / f"{name}.key")

    def new_key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", self.key(name)]

    def run(self, *command):
        subprocess.run(["openssl", *command], check=True, capture_output=True, cwd=self.folder)

    def sign(self, name, alternatives="DNS:localhost,IP:127.0.0.1", *, is_expired=False):
        """Return the files of a certificate and its key."""
        self.run("req", *self.new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.folder / f"{name}.ext").write_text(
            f"subjectAltName={alternatives}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        # `ca` alone can sign for a time that is over, and it wants to keep books.
        (self.folder / "ca.conf").write_text(
            "[ca]\ndefault_ca=x\n[x]\ndatabase=index\nnew_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\n"
            "policy=p\nunique_subject=no\n[p]\ncommonName=supplied\n"
        )
        (self.folder / "index").touch()
        dates = ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"] if is_expired else ["-days", "2"]
        signing = ["-cert", self.file(self.name), "-keyfile", self.key(self.name), "-extfile", f"{name}.ext"]
        self.run(
            "ca",
            "-batch",
            "-notext",
            "-config",
            "ca.conf",
            *signing,
            *dates,
            "-in",
            f"{name}.csr",
            "-out",
            self.file(name),
        )
        return self.file(name), self.key(name)


def tls_url(url, port, host="localhost", **options):
    parts = urlsplit(at(url, host=host, port=port))
    return with_options(f"amqps://{parts.netloc}{parts.path}", **{"timeout": "5s", **options})


async def refused(url):
    """Return the sentence with which opening is refused; it must not wait for the timeout."""
    started = time.monotonic()
    broker = RabbitBroker(url, RealClock())
    with pytest.raises(BrokerUnavailable) as caught:
        await broker.open()
    await broker.close()
    assert time.monotonic() - started < 4.5, "a refusal for good is said at once"
    return str(caught.value)
