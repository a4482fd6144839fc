"""TLS towards a broker: the files that say whom to trust and who we are. The server's name is always verified."""

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files; all empty says nothing about TLS."""

    ca: str = ""
    """The only authorities that are trusted; without it, those of the system."""

    cert: str = ""
    """Our own certificate, for a server that asks for one; it may hold the key too."""

    key: str = ""

    @property
    def given(self) -> bool:
        """Whether any file is named: then nothing is sent over a line that isn't encrypted."""
        return bool(self.ca or self.cert or self.key)

    def context(self) -> ssl.SSLContext:
        """Return what verifies a server. The files are read anew: they may have been renewed.

        Raises:
            ConnectionError: a file can't be used. The message says which and why.

        """
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:
            raise ConnectionError(f"the CA in {self.ca} can't be used ({_why(error)})") from None
        if self.key and not self.cert:
            raise ConnectionError(f"there is no certificate to the key in {self.key}")
        if self.cert:
            try:
                # A password that is wrong for every key: without one, OpenSSL would ask the terminal for it.
                context.load_cert_chain(self.cert, self.key or None, password="")
            except OSError as error:
                raise ConnectionError(f"the certificate in {self.cert} can't be used ({_why(error)})") from None
        return context


NO_TLS_FILES = TlsFiles()


def tls_reason(error: ssl.SSLError) -> str:
    """Return in a few words why there is no encrypted line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return f"TLS failed: {_why(error)}"


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not a PEM file").lower().replace("_", " ")
    return error.strerror or type(error).__name__
