"""The application of the console: its routes in a FastAPI application, the frame of every page, and who may look."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from nicegui import app as pages
from nicegui import ui
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leftfold.http.access import Access, KnownHosts, Principal
from leftfold.http.console.console_state import Console, Visitor, explain_error
from leftfold.http.console.contracts_page import contracts
from leftfold.http.console.dead_letters_page import dead_letters
from leftfold.http.console.elements import button, end_with_token, heading, html, show_error, with_name, work_bar
from leftfold.http.console.html import Html, tag
from leftfold.http.console.log_page import sql, topics
from leftfold.http.console.overview_page import overview
from leftfold.http.console.processes_page import processes, workers
from leftfold.http.console.streams_page import streams, trace
from leftfold.http.console.views_page import view, views
from leftfold.http.problems import ProblemError, refusal
from leftfold.runtime.project import Usage

__all__ = ["frame", "mount_console"]

_log = logging.getLogger("leftfold.console")
_STYLE = Path(__file__).with_name("style.css")
_THEME = "leftfold-theme"
_PRINCIPAL = "leftfold.principal"
"""Where the guard of pages leaves who asks, for the page that is made."""
_SCRIPT = """
document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard.writeText(copy.dataset.copy).then(() => {
      copy.textContent = "copied";
      setTimeout(() => { copy.textContent = "copy"; }, 1500);
    });
  }
});
// A part that is drawn again while it has the focus keeps it: the link to the same place gets the focus.
let focused = null;
document.addEventListener("focusin", (event) => { focused = event.target.closest(".lf-html a[href]"); });
new MutationObserver(() => {
  if (focused && !focused.isConnected && document.activeElement === document.body) {
    const href = focused.getAttribute("href");
    focused = null;
    for (const link of document.querySelectorAll(".lf-html a[href]")) {
      if (link.getAttribute("href") === href) { link.focus({ preventScroll: true }); break; }
    }
  }
}).observe(document, { childList: true, subtree: true });
"""
"""Copies command lines, and keeps the focus of the keyboard on what is drawn again."""

_TO_LINK = """requestAnimationFrame(() => {
  document.querySelector(".lf-links [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
})"""
"""Moves the links of a phone, which stand in one line, to the current one."""

ROUTES: dict[str, tuple[str, Callable[..., Any]]] = {
    "/": ("Overview", overview),
    "/streams": ("Streams", streams),
    "/trace": ("Trace", trace),
    "/views": ("Views", views),
    "/views/{name}": ("", view),
    "/dead": ("Dead letters", dead_letters),
    "/processes": ("Processes", processes),
    "/workers": ("Workers", workers),
    "/topics": ("Topics", topics),
    "/sql": ("SQL", sql),
    "/contracts": ("Contracts", contracts),
}
"""Every page by its route: its name among the links ('' = none there), and the function that makes it."""


class _SubPages(ui.sub_pages):
    """The part of the frame that changes from page to page."""

    def _render_404(self) -> None:
        heading("No such page")
        show_error(Usage(f"{self._router.current_path} is no page of the console; choose one of the links"))

    def _render_error(self, error: Exception) -> None:
        show_error(error)


def frame(console: Console) -> Callable[[], None]:
    """The function that makes the frame of a page: the links, the theme, long work, and the page itself."""

    def root() -> None:
        request = ui.context.client.request
        visitor = _visitor(console, request)
        ui.add_head_html(f"<style>{_STYLE.read_text('utf-8')}</style><script>{_SCRIPT}</script>")
        ui.page_title(f"{', '.join(app.name for app in console.apps.values())} – Leftfold")
        theme = ui.dark_mode({"dark": True, "light": False}.get(request.cookies.get(_THEME, "")))
        with ui.element("div").classes("lf-shell"):
            with with_name(ui.element("nav").classes("lf-nav"), "Pages"):
                names = ", ".join(app.name for app in console.apps.values())
                html(tag("div", "Leftfold", cls="lf-brand") + tag("div", names, cls="lf-apps"))
                links = html()
                with ui.element("div").classes("lf-side"):
                    html(tag("span", "may act" if visitor.may_act else "reads only", cls="lf-badge"))
                    button("Dark or light", lambda: _change_theme(theme))
            with ui.element("main").classes("lf-main") as main:
                work_bar(visitor)
                _SubPages({route: make for route, (_, make) in ROUTES.items()}, data={"visitor": visitor})
        ui.skip_link(target=main)
        end_with_token(visitor.principal.expires)
        router = ui.context.client.sub_pages_router

        def mark(path: str) -> None:
            links.set_content(_links(visitor, path))
            ui.run_javascript(_TO_LINK)

        mark(router.current_path)
        router.on_path_changed(mark)
        ui.on_exception(lambda error: ui.notify(explain_error(error), type="negative", timeout=0, close_button="Close"))

    return root


def _visitor(console: Console, request: Request) -> Visitor:
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/") + request.scope.get("root_path", "").rstrip("/")
    principal = request.scope.get(_PRINCIPAL, Principal())
    return Visitor(console, prefix, principal, console.may_act(principal))


def _links(visitor: Visitor, path: str) -> Html:
    here = path.partition("?")[0]
    items = []
    for route, (name, _) in ROUTES.items():
        current = here == route or (route != "/" and here.startswith(f"{route}/"))
        if name:
            link = tag("a", name, href=visitor.href(route), aria_current="page" if current else None)
            items.append(tag("li", link))
    return tag("ul", *items, cls="lf-links")


async def _change_theme(theme: ui.dark_mode) -> None:
    """Changes between dark and light; the choice stays in a cookie of this browser."""
    is_dark = await ui.run_javascript("return document.body.classList.contains('body--dark')", timeout=5.0)
    theme.set_value(not is_dark)
    chosen = "light" if is_dark else "dark"
    ui.run_javascript(f'document.cookie = "{_THEME}={chosen}; path=/; max-age=31536000; SameSite=Strict"')


def with_key(request: Request) -> Request:
    """A request of a browser whose password, asked for by HTTP Basic, is sent on as the API key."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return request
    try:
        _, _, key = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        key = ""
    headers = [(name, text) for name, text in request.scope["headers"] if name not in (b"authorization", b"x-api-key")]
    return Request({**request.scope, "headers": [*headers, (b"x-api-key", key.encode())]})


_HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
"""No page of another site shows the console within itself, where a visitor could be led to press a button."""


def _is_asset(scope: Scope) -> bool:
    """Whether a request is for what pages load: a file of NiceGUI, or messages, which need the id of a page.

    A path below that is no such route is a page, since NiceGUI answers every unknown path with one.
    """
    inner = scope["path"].removeprefix(scope.get("root_path", ""))
    if not inner.startswith(("/_nicegui/", "/_nicegui_ws/")):
        return False
    return any(route.matches(scope)[0] is Match.FULL for route in pages.routes)


def _is_foreign(headers: Headers) -> bool:
    """Whether a script of another site asks: browsers name its site with such a request, and with each of a socket."""
    origin, host = headers.get("origin", ""), urlsplit(f"//{headers.get('host', '')}")
    if not origin:
        return False
    site = urlsplit(origin)
    try:
        usual = {None, 443 if site.scheme == "https" else 80}
        is_port = host.port is None or host.port == site.port or {host.port, site.port} <= usual
    except ValueError:
        is_port = False
    if site.hostname == host.hostname and is_port:
        return False
    _log.warning(
        "a page of %r was refused: it asked for %r; a proxy must leave the Host as it was", origin, host.netloc
    )
    return True


class _Guard:
    """Asks a browser who its user is before any page; what pages load needs no credentials."""

    def __init__(self, app: ASGIApp, access: Access, console: Console) -> None:
        self._app, self._access, self._console = app, access, console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and _is_foreign(Headers(scope=scope)):
            # Neither a page nor its messages: a script of another site could press the buttons of an open console.
            await PlainTextResponse("the console answers to its own pages alone\n", 403)(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        if not _is_asset(scope):
            try:
                principal = scope[_PRINCIPAL] = await self._access.principal(with_key(Request(scope)))
                if not self._console.may_look(principal):
                    raise refusal(403, f"{principal.name or 'this visitor'} may not look at this console")
            except ProblemError as error:
                asked = {"WWW-Authenticate": 'Basic realm="Leftfold: any name, and an API key as password"'}
                problem = error.problem
                headers = asked if problem.status == 401 else None
                await PlainTextResponse(f"{problem.detail}\n", problem.status, headers)(scope, receive, guarded)
                return
        await self._app(scope, receive, guarded)


def mount_console(
    api: FastAPI, console: Console, path: str = "/", *, access: Access | None = None, hosts: Sequence[str] = ()
) -> None:
    """Adds the console to a FastAPI application; a process has one console.

    Args:
        path: where it is mounted. access: who may look; by default everybody.
        hosts: the names under which it answers; empty = any.
    """
    rules = access or Access()
    if path != "/":

        async def to_slash(request: Request) -> RedirectResponse:
            before = request.headers.get("x-forwarded-prefix", "").rstrip("/")
            return RedirectResponse(f"{before}{request.scope.get('root_path', '')}{path}/")

        api.add_route(path, to_slash, include_in_schema=False)
    if hosts:
        pages.add_middleware(KnownHosts, hosts=hosts)
    pages.add_middleware(_Guard, access=rules, console=console)
    pages.on_shutdown(console.close)
    ui.run_with(
        api, root=frame(console), mount_path=path, title="Leftfold", dark=None, tailwind=False, language="en-US",
        show_welcome_message=False, reconnect_timeout=10.0,
    )  # fmt: skip
