//! MCP servers that people use.
