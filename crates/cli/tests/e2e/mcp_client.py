"""Speaks to us with the SDK's own client, on stdio or over HTTP: what it lists, then one call after the other, one JSON line
each. `{run}` in an argument is the first run that was submitted."""
import asyncio, json, sys
from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@asynccontextmanager
async def streams():
    if sys.argv[1].startswith("http"):
        import httpx2
        from mcp.client.streamable_http import streamable_http_client
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {sys.argv[3]}"}) as client:
            async with streamable_http_client(sys.argv[1], http_client=client) as found:
                yield found[0], found[1]
    else:
        async with stdio_client(StdioServerParameters(command=sys.argv[1], args=["mcp", *sys.argv[3:]])) as found:
            yield found


async def main():
    async with streams() as (read, write), ClientSession(read, write) as session:
        greeting = await session.initialize()
        listed = await session.list_tools()
        told = greeting.model_dump(mode="json", by_alias=True)
        print(json.dumps({"server": told["serverInfo"]["name"], "tools": [tool.name for tool in listed.tools]}))
        run, progress = None, []

        async def tell(done, total, message):
            progress.append(done)

        for name, arguments in json.loads(sys.argv[2]):
            arguments = json.loads(json.dumps(arguments).replace("{run}", run or ""))
            answer = await session.call_tool(name, arguments, progress_callback=tell if name == "watch" else None)
            answer = answer.model_dump(mode="json", by_alias=True)
            structured = answer.get("structuredContent")
            if name == "submit" and not answer.get("isError"):
                run = structured["runs"][0]["run_id"]
            line = {"is_error": answer.get("isError"), "structured": structured}
            if name == "watch":
                line["progress"] = progress
            print(json.dumps(line))


asyncio.run(main())
