"""Speaks to `actum mcp` with the SDK's own client: what it lists, then one call after the other, one JSON line each."""
import asyncio, json, sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    server = StdioServerParameters(command=sys.argv[1], args=["mcp"])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        greeting = await session.initialize()
        listed = await session.list_tools()
        told = greeting.model_dump(mode="json", by_alias=True)
        print(json.dumps({"server": told["serverInfo"]["name"], "tools": [tool.name for tool in listed.tools]}))
        for name, arguments in json.loads(sys.argv[2]):
            answer = await session.call_tool(name, arguments)
            answer = answer.model_dump(mode="json", by_alias=True)
            print(json.dumps({"is_error": answer.get("isError"), "structured": answer.get("structuredContent")}))


asyncio.run(main())
