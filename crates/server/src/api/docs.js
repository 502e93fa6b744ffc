// The page at /docs: the routes of /openapi.json, each with a form to try it. Asks this server only; the token is never kept.
"use strict";

const at = (id) => document.getElementById(id);
const make = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};
const headers = () => {
  const token = at("token").value.trim();
  return token ? { authorization: `Bearer ${token}` } : {};
};

let whole = {};

// What is referred to, in place of the reference.
const resolve = (schema) => {
  const target = schema && schema.$ref;
  if (!target || !target.startsWith("#/")) return schema;
  return target.slice(2).split("/").reduce((below, name) => (below || {})[name], whole);
};

function field(name, description) {
  const label = make("label", name);
  const input = make("input");
  if (description) input.placeholder = description;
  label.append(input);
  return { label, input };
}

function body(operation) {
  const content = operation.requestBody && operation.requestBody.content;
  if (!content) return null;
  const type = Object.keys(content)[0];
  const area = make("textarea");
  const shown = make("details");
  shown.append(make("summary", `content: ${Object.keys(content).join(", ")}`));
  shown.append(make("pre", JSON.stringify(resolve(content[type].schema), null, 2)));
  return { type, area, shown };
}

function form(path, method, operation) {
  const box = make("details");
  const line = make("summary");
  line.append(make("span", method.toUpperCase(), "method"), make("code", path), ` ${operation.summary || ""} `);
  line.append(make("span", `(${operation["x-actum-need"] || "read"})`, "need"));
  box.append(line);
  box.dataset.words = `${method} ${path} ${operation.summary}`.toLowerCase();
  box.addEventListener("toggle", () => box.open && box.children.length === 1 && fill(box, path, method, operation));
  return box;
}

function fill(box, path, method, operation) {
  box.append(make("p", operation.description || ""));
  const inputs = (operation.parameters || []).map(resolve).map((parameter) => {
    const made = field(`${parameter.name} (${parameter.in}${parameter.required ? ", required" : ""})`, parameter.description);
    box.append(made.label);
    return { parameter, input: made.input };
  });
  const content = body(operation);
  if (content) box.append(content.shown, content.area);
  const good = Object.entries(operation.responses || {}).filter(([status]) => status !== "default");
  for (const [status, answer] of good) {
    const schema = answer.content && answer.content["application/json"] && answer.content["application/json"].schema;
    const shown = make("details");
    shown.append(make("summary", `answer ${status}`), make("pre", JSON.stringify(resolve(schema), null, 2)));
    box.append(shown);
  }
  const send = make("button", "Send");
  send.type = "button";
  const told = make("pre", "");
  box.append(send, told);
  send.addEventListener("click", async () => {
    const query = new URLSearchParams();
    const sent = headers();
    let target = path;
    for (const { parameter, input } of inputs) {
      if (input.value === "") continue;
      if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      if (parameter.in === "query") query.append(parameter.name, input.value);
      if (parameter.in === "header") sent[parameter.name] = input.value;
    }
    const request = { method: method.toUpperCase(), headers: sent, credentials: "omit", redirect: "error" };
    if (content && content.area.value) {
      sent["content-type"] = content.type;
      request.body = content.area.value;
    }
    const text = query.toString();
    told.textContent = "…";
    try {
      const answer = await fetch(text ? `${target}?${text}` : target, request);
      const said = await answer.text();
      let shown = said;
      try {
        shown = JSON.stringify(JSON.parse(said), null, 2);
      } catch {
        // Not every answer is JSON.
      }
      told.textContent = `${answer.status}, exit ${answer.headers.get("x-actum-exit")}\n${shown}`;
    } catch (error) {
      told.textContent = String(error);
    }
  });
}

async function load() {
  at("state").textContent = "…";
  const answer = await fetch("/openapi.json", { headers: headers(), credentials: "omit", redirect: "error" });
  if (!answer.ok) {
    at("state").textContent = `${answer.status}: a token that may read is needed`;
    return;
  }
  whole = await answer.json();
  const boxes = Object.entries(whole.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => form(path, method, operation)));
  at("routes").replaceChildren(...boxes);
  at("state").textContent = `${boxes.length} routes of version ${whole.info.version}`;
}

at("load").addEventListener("click", load);
at("filter").addEventListener("input", () => {
  const wanted = at("filter").value.toLowerCase();
  for (const box of at("routes").children) box.hidden = !box.dataset.words.includes(wanted);
});
load();
