import sys
# What is installed comes before what lies in the working folder: a file of the project must not stand in for a package.
sys.path[:] = [folder for folder in sys.path if folder] + ["."]
import importlib, inspect, json, os

MARK, MODULE, NAME = sys.argv[1:4]
# `packages/name`: a package in a folder of the project, as `pip install --target packages` puts it there.
FOLDER, _, MODULE = MODULE.rpartition("/")
if FOLDER:
    sys.path.insert(len(sys.path) - 1, FOLDER)
# What the function prints, and what it starts prints, is not its answer.
answers = os.dup(1)
os.dup2(2, 1)


def done(document, code):
    sys.stdout.flush()
    text = ("\n" + MARK + document + "\n").encode()
    while text:
        text = text[os.write(answers, text):]
    sys.stderr.flush()
    os._exit(code)


def failed(kind, error):
    name = type(error).__name__ if isinstance(error, BaseException) else ""
    done(json.dumps({"error": {"kind": kind, "type": name, "message": str(error)}}), 1)


try:
    asked = json.load(sys.stdin)
    try:
        found = importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        missing = MODULE == error.name or MODULE.startswith("%s." % error.name)
        failed("package" if missing else "thrown", error)
    for part in NAME.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            failed("name", error)
    if not callable(found):
        failed("name", "%s is no function" % NAME)
    try:
        inspect.signature(found).bind(*asked["args"], **asked["params"])
    except TypeError as error:
        failed("arguments", error)
    except ValueError:
        pass  # Some functions that are not written in Python do not say what they take.
    result = found(*asked["args"], **asked["params"])
    if inspect.isawaitable(result):
        import asyncio

        async def wait(it):
            return await it

        result = asyncio.run(wait(result))
except BaseException as error:
    import traceback

    traceback.print_exc()
    failed("thrown", error)
try:
    document = json.dumps({"ok": result}, allow_nan=False)
except (TypeError, ValueError, RecursionError) as error:
    failed("result", error)
done(document, 0)
