"""`/docs`: Swagger UI. Its files come with the `serve` extra, so that the page works without the internet."""

from __future__ import annotations

from importlib.resources import files

from fastapi import Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response

from mnemorank.errors import NotFoundError
from mnemorank.server.api.schemas import dialect_router

router = dialect_router("service")

_FOLDER = files("fastapi_swagger") / "resources"
_MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'"
)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Show the API. All URLs are relative, so that the page works behind a proxy that adds a prefix."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=str(request.app.title),
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon-32x32.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    page.headers["content-security-policy"] = _POLICY
    return page


@router.get("/docs/{name}", include_in_schema=False)
def asset(name: str) -> Response:
    """Return a file of Swagger UI."""
    if name not in _MEDIA_TYPES:
        raise NotFoundError("no such file")
    content = (_FOLDER / name).read_bytes()
    return Response(content, media_type=_MEDIA_TYPES[name], headers={"cache-control": "public, max-age=86400"})
