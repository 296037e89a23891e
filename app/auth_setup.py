"""Authentication from the settings, and the checks of it at the start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from app.auth.authenticator import (
    AdminTokenFileError,
    Authenticator,
    create_admin_token_file,
    read_admin_token_file,
)
from app.net.addresses import is_loopback
from app.settings import OidcIssuer, Settings, SettingsError
from app.store.database import database_exists, has_valid_token
from app.store.tokens import TokenStore
from blocklist.model.claims import ROLES_BY_NAME, Grants

if TYPE_CHECKING:
    from app.auth.oidc import JwtVerifiers, OidcVerifier
    from app.auth.signin import SignIn

log = structlog.get_logger(__name__)


def make_authenticator(settings: Settings, store: TokenStore, clock: Callable[[], int]) -> Authenticator:
    """The authenticator for these settings; its tokens are not loaded yet."""
    path = Path(settings.admin_token_file) if settings.admin_token_file else None
    enabled = settings.auth == "tokens"
    return Authenticator(
        store, clock, enabled=enabled, admin_token_path=path, jwt_verifier=make_jwt_verifier(settings, clock)
    )


def make_jwt_verifier(settings: Settings, clock: Callable[[], int]) -> JwtVerifiers | None:
    if settings.auth == "off" or not (settings.oidc_issuer or settings.service_account_audience):
        return None
    # Imported here, because its cryptography takes 10 MB.
    from app.auth.oidc import JwtVerifiers  # noqa: PLC0415

    accounts, people = _service_account_verifiers(settings, clock), _oidc_verifiers(settings, clock)
    if accounts.keys() & people.keys():
        raise SettingsError(
            f"BLOCKLIST_OIDC_ISSUER: {settings.oidc_issuer} is the issuer of this cluster's ServiceAccounts, which have"
            " their roles in BLOCKLIST_SERVICE_ACCOUNT_ROLES: remove BLOCKLIST_OIDC_ISSUER, or set it to the issuer of"
            " people's JWTs."
        )
    verifiers = accounts | people
    return JwtVerifiers(verifiers)


def _oidc_verifiers(settings: Settings, clock: Callable[[], int]) -> dict[str, OidcVerifier]:
    from app.auth import oidc  # noqa: PLC0415

    grants = Grants.parse(settings.oidc_roles)

    def verifier(issuer: OidcIssuer) -> OidcVerifier:
        rules = oidc.OidcConfig(
            issuer=issuer.url,
            audiences=issuer.audiences,
            roles_claim=settings.oidc_roles_claim,
            grants=grants if grants.rules else ROLES_BY_NAME,
            name_claim=settings.oidc_name_claim,
        )
        return oidc.OidcVerifier(rules, lambda: oidc.discover_keys(issuer.url), clock)

    return {issuer.url.rstrip("/"): verifier(issuer) for issuer in settings.oidc_issuers}


def make_sign_in(settings: Settings, verifiers: JwtVerifiers | None) -> SignIn | None:
    """Where people log in on the page; None if they cannot."""
    issuers = [issuer for issuer in settings.oidc_issuers if issuer.client_id]
    if verifiers is None or not issuers:
        return None
    from app.auth import signin  # noqa: PLC0415 - as above

    configs = (signin.ClientConfig(it.url, it.client_id, it.client_secret, settings.oidc_scope) for it in issuers)
    return signin.SignIn([signin.Provider(config, verifiers.of_issuer(config.issuer)) for config in configs])


def client_secrets(settings: Settings, text: str) -> list[str]:
    """The secrets in this text for the issuers at which people log in. Raises ValueError."""
    try:
        issuers = settings.model_copy(update={"oidc_client_secret": text}).oidc_issuers
    except SettingsError as error:
        raise ValueError(str(error)) from None
    return [issuer.client_secret for issuer in issuers if issuer.client_id]


def _service_account_verifiers(settings: Settings, clock: Callable[[], int]) -> dict[str, OidcVerifier]:
    from app.auth import oidc  # noqa: PLC0415

    if not settings.service_account_audience:
        return {}
    own = oidc.OwnAccount(oidc.FOLDER)
    try:
        issuer = own.issuer()
    except oidc.ServiceAccountError as error:
        raise SettingsError(
            f"BLOCKLIST_SERVICE_ACCOUNT_AUDIENCE: {error} Accepting tokens of ServiceAccounts needs a pod with"
            " `automountServiceAccountToken: true`."
        ) from None
    rules = oidc.ServiceAccountRules(
        issuer=issuer,
        audiences=(settings.service_account_audience,),
        roles=Grants.of_accounts(settings.service_account_roles),
    )
    return {issuer.rstrip("/"): oidc.make_verifier(rules, own, _api_server_url(os.environ), clock)}


def _api_server_url(environ: Mapping[str, str]) -> str:
    """The API server's URL, from the variables that every pod has. Raises SettingsError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise SettingsError(
            "BLOCKLIST_SERVICE_ACCOUNT_AUDIENCE: the service does not run in a Kubernetes pod, where"
            " KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are set."
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def check_access(settings: Settings, now: int) -> None:
    """Raises SettingsError if anyone or no one would have access, at the time `now` (Unix ms). Changes nothing."""
    for issuer in settings.oidc_issuers:
        if not issuer.audiences:
            raise SettingsError(
                f"BLOCKLIST_OIDC_AUDIENCE: set the audience that the JWTs of {issuer.url} must have, or"
                " BLOCKLIST_OIDC_CLIENT_ID."
            )
    if not settings.oidc_issuer and (settings.oidc_client_id or settings.oidc_command_client_id):
        raise SettingsError("BLOCKLIST_OIDC_ISSUER: set the URL of the issuer at which people log in.")
    if bool(settings.service_account_audience) != bool(settings.service_account_roles):
        raise SettingsError(
            "Set both BLOCKLIST_SERVICE_ACCOUNT_AUDIENCE and BLOCKLIST_SERVICE_ACCOUNT_ROLES, or neither."
        )
    if settings.auth == "off":
        _check_auth_off(settings)
    elif settings.admin_token_file:
        _check_admin_token_file(Path(settings.admin_token_file))
    elif not (settings.oidc_issuer or settings.service_account_roles) and not _has_valid_token(settings, now):
        raise SettingsError(
            "BLOCKLIST_AUTH: there is no valid token, so no one would have access: set BLOCKLIST_ADMIN_TOKEN_FILE"
            " (the file is created if it is missing), BLOCKLIST_OIDC_ISSUER or BLOCKLIST_SERVICE_ACCOUNT_ROLES."
        )


def _check_auth_off(settings: Settings) -> None:
    if not is_loopback(settings.host):
        raise SettingsError(
            f"BLOCKLIST_HOST: without authentication the service listens on a loopback address only, not on"
            f" {settings.host!a}: set BLOCKLIST_AUTH=tokens and BLOCKLIST_ADMIN_TOKEN_FILE=admin.token (the file is"
            " created), or BLOCKLIST_HOST=127.0.0.1."
        )


def _has_valid_token(settings: Settings, now: int) -> bool:
    return database_exists(settings.database_url) and has_valid_token(settings.database_url, now)


def _check_admin_token_file(path: Path) -> None:
    if path.exists():
        try:
            read_admin_token_file(path)
        except AdminTokenFileError as error:
            raise SettingsError(f"BLOCKLIST_ADMIN_TOKEN_FILE: {error}") from None
    elif not path.absolute().parent.is_dir():
        raise SettingsError(f"BLOCKLIST_ADMIN_TOKEN_FILE: create the folder of {path}, which does not exist.")


def create_admin_token(settings: Settings) -> None:
    """Create the admin token file if it is missing; `check_access` has read one that exists. Raises SettingsError."""
    if settings.auth == "off" or not settings.admin_token_file:
        return
    path = Path(settings.admin_token_file)
    try:
        created = create_admin_token_file(path)
    except AdminTokenFileError as error:
        raise SettingsError(f"BLOCKLIST_ADMIN_TOKEN_FILE: {error}") from None
    if created:
        log.warning("admin token file created", file=str(path.absolute()))
