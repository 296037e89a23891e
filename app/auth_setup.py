"""Authentication from the settings, and the checks of it at the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from app.auth import admin_token_file
from app.auth.authenticator import Authenticator, JwtVerifier
from app.net.addresses import is_loopback
from app.settings import Settings, SettingsError
from app.store.store import has_valid_token
from app.store.tokens import TokenStore

log = structlog.get_logger(__name__)


def make_authenticator(settings: Settings, store: TokenStore, clock: Callable[[], int]) -> Authenticator:
    """The authenticator for these settings; its tokens are not loaded yet."""
    path = Path(settings.admin_token_file) if settings.admin_token_file else None
    enabled = settings.auth == "tokens"
    return Authenticator(
        store, clock, enabled=enabled, admin_token_path=path, jwt_verifier=_jwt_verifier(settings, clock)
    )


def _jwt_verifier(settings: Settings, clock: Callable[[], int]) -> JwtVerifier | None:
    if settings.auth == "off" or not settings.oidc_issuer:
        return None
    # Imported here, because its cryptography takes 10 MB.
    from app.auth import oidc  # noqa: PLC0415

    claims = oidc.OidcConfig(
        issuer=settings.oidc_issuer,
        audience=settings.oidc_audience,
        roles_claim=settings.oidc_roles_claim,
        name_claim=settings.oidc_name_claim,
    )
    return oidc.OidcVerifier(claims, clock)


def check_access(settings: Settings, now: int) -> None:
    """Raises SettingsError if anyone or no one would have access. Creates the admin token file."""
    if settings.oidc_issuer and not settings.oidc_audience:
        raise SettingsError("BLOCKLIST_OIDC_AUDIENCE: set the audience that the issuer's JWTs must have.")
    if settings.auth == "off":
        _check_auth_off(settings)
    elif settings.admin_token_file:
        _create_admin_token_file(Path(settings.admin_token_file))
    elif not settings.oidc_issuer and not has_valid_token(settings.database_url, now):
        raise SettingsError(
            "BLOCKLIST_AUTH: there is no valid token, so no one would have access: set BLOCKLIST_ADMIN_TOKEN_FILE"
            " (the file is created if it is missing) or BLOCKLIST_OIDC_ISSUER."
        )


def _check_auth_off(settings: Settings) -> None:
    if not is_loopback(settings.host):
        raise SettingsError(
            f"BLOCKLIST_HOST: without authentication the service listens on a loopback address only, not on"
            f" {settings.host!a}: set BLOCKLIST_AUTH=tokens and BLOCKLIST_ADMIN_TOKEN_FILE=admin.token (the file is"
            " created), or BLOCKLIST_HOST=127.0.0.1."
        )


def _create_admin_token_file(path: Path) -> None:
    try:
        if admin_token_file.create(path):
            log.warning("admin token file created", file=str(path.absolute()))
        admin_token_file.read(path)
    except admin_token_file.AdminTokenFileError as error:
        raise SettingsError(f"BLOCKLIST_ADMIN_TOKEN_FILE: {error}") from None
