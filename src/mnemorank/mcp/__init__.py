"""The MCP server: an agent's memories as tools."""
