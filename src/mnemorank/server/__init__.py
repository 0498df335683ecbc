"""The server: `mnemorank serve`, or `create_app(Settings(...))` under an ASGI server of your own."""
