import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import fs from "node:fs";

const [mark, module, name] = process.argv.slice(-3);
const write = (text) => {
  let bytes = Buffer.from(text);
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(fs.writeSync(1, bytes));
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
};
// What the function prints is not its answer.
process.stdout.write = process.stderr.write.bind(process.stderr);
const done = (document, code) => {
  write(`\n${mark}${document}\n`);
  process.exit(code);
};
const failed = (kind, error) => {
  const type = error?.name ?? typeof error;
  const message = String(error?.message ?? error);
  done(JSON.stringify({ error: { kind, type, message } }), 1);
};
const thrown = (error) => {
  console.error(error);
  failed("thrown", error);
};
process.on("uncaughtException", thrown);
process.on("unhandledRejection", thrown);

const missing = (error) =>
  ["ERR_MODULE_NOT_FOUND", "MODULE_NOT_FOUND", "ERR_UNKNOWN_BUILTIN_MODULE", "ERR_UNSUPPORTED_DIR_IMPORT"].includes(error?.code);
let found;
try {
  found = await import(module);
} catch (error) {
  if (!missing(error)) thrown(error);
  let path;
  try {
    // The other way to find one: NODE_PATH, a folder, a file without its ending.
    path = createRequire(pathToFileURL(`${process.cwd()}/`)).resolve(module);
  } catch (other) {
    // Something is there that needs something else which is not.
    if (!missing(other) || !String(error.message).includes(`'${module}'`)) thrown(error);
    failed("package", error);
  }
  try {
    found = await import(pathToFileURL(path));
  } catch (other) {
    thrown(other);
  }
}

// `a.b` is called as a method of `a`; a package that is one object has its functions there.
const step = (from, part) => (from !== null && from !== undefined ? from[part] : undefined);
const walk = (from) => name.split(".").reduce(([, at], part) => [at, step(at, part)], [undefined, from]);
let [self, target] = walk(found);
if (typeof target !== "function") [self, target] = walk(found.default);
// An export of CommonJS is a method of what is exported.
if (self === found && step(found.default, name) === target) self = found.default;
if (typeof target !== "function" && name === "default") [self, target] = [undefined, found.default];
if (typeof target !== "function") failed("name", new TypeError(`${module} has no function ${name}`));

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const named = Object.keys(asked.params).length > 0 ? [asked.params] : [];
let result;
try {
  result = await target.apply(self, [...asked.args, ...named]);
} catch (error) {
  thrown(error);
}

// JSON would quietly turn these into something else.
const odd = (value, path, seen) => {
  if (typeof value === "number" && !Number.isFinite(value)) return `${path} is ${value}`;
  if (["bigint", "function", "symbol"].includes(typeof value)) return `${path} is a ${typeof value}`;
  if (value === null || typeof value !== "object") return null;
  if (typeof value.toJSON === "function") return ArrayBuffer.isView(value) ? `${path} is bytes` : null;
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return `${path} is bytes`;
  if (value instanceof Map || value instanceof Set) return `${path} is a ${value.constructor.name}`;
  if (seen.includes(value)) return `${path} contains itself`;
  for (const [key, inner] of Object.entries(value)) {
    const wrong = typeof inner === "function" ? null : odd(inner, `${path}.${key}`, [...seen, value]);
    if (wrong) return wrong;
  }
  return null;
};
const wrong = odd(result, "the result", []);
if (wrong) failed("result", new TypeError(wrong));
let document;
try {
  document = JSON.stringify({ ok: result === undefined ? null : result });
} catch (error) {
  failed("result", error);
}
done(document, 0);
