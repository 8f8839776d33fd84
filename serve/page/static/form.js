// Forms made from JSON schemas: what a graph takes as input, what a question takes as answer.
//
// A field is `{element, read}`; `read` gives the value, undefined for one that is left out, and
// throws FieldError where what was typed does not fit. What the schema does not say is typed as JSON.
import { button, cut, fill, make } from "./dom.js";

/** What was typed into a field does not fit. */
export class FieldError extends Error {
  constructor(label, text, input) {
    super(`${label || "the value"} ${text}`);
    input.focus();
    input.setAttribute("aria-invalid", "true");
    input.addEventListener("input", () => input.removeAttribute("aria-invalid"), { once: true });
  }
}

const DEEPEST = 5;
let numbers = 0;

/**
 * A form for a schema; null or {} for any value. It can be turned into one field for JSON, and back.
 * `hidden` names properties that are not asked for.
 */
export function makeForm(schema, { label = "" } = {}) {
  const asFields = schemaField(schema ?? {}, { label, root: schema ?? {}, depth: 0, isRequired: true });
  if (asFields.isFree) return { element: make("div.form", {}, asFields.element), read: asFields.read };
  const asJson = jsonField({ label: "JSON", isRequired: true, depth: 1 });
  let shown = asFields;
  const element = make("div.form");
  const toggle = button("as JSON", () => {
    if (shown === asFields) {
      asJson.write(tryRead(asFields));
      shown = asJson;
    } else {
      shown = asFields;
    }
    toggle.textContent = shown === asFields ? "as JSON" : "as form";
    draw();
  }, { kind: "plain small" });
  const draw = () => fill(element, shown.element, make("div.form-foot", {}, toggle));
  draw();
  return { element, read: () => shown.read() };
}

function tryRead(field) {
  try { return field.read(); } catch { return undefined; }
}

/** The field for a schema. `at` has label, root, depth, isRequired, and `name`, its key. */
function schemaField(given, at) {
  const schema = resolve(given, at.root);
  const own = { ...at, hint: schema.description, initial: schema.default };
  if (at.depth > DEEPEST) return jsonField(own);
  if ("const" in schema) return constField(schema.const, own);
  if (Array.isArray(schema.enum)) return enumField(schema.enum, own);
  const variants = (schema.anyOf ?? schema.oneOf)?.filter((each) => each.type !== "null");
  if (variants) {
    const isRequired = at.isRequired && variants.length === (schema.anyOf ?? schema.oneOf).length;
    if (variants.length !== 1) return jsonField({ ...own, isRequired, takesText: variants.some((each) => resolve(each, at.root).type === "string") });
    return schemaField({ ...schema, anyOf: undefined, oneOf: undefined, ...variants[0] }, { ...at, isRequired });
  }
  const isMessages = at.name === "messages" && schema.type === "array";
  if (isMessages) return messageField(own);
  const kinds = { string: textField, integer: numberField, number: numberField, boolean: flagField, array: listField, object: groupField };
  const kind = kinds[schema.type];
  return kind ? kind(own, schema) : jsonField({ ...own, takesText: schema.type === undefined });
}

function resolve(schema, root) {
  for (let hops = 0; schema.$ref && hops < 20; hops++) {
    const { $ref, ...rest } = schema;
    const target = $ref.replace(/^#\//, "").split("/").reduce((found, key) => found?.[key], root);
    schema = { ...target, ...rest };
  }
  return schema;
}

// -- single values ---------------------------------------------------------------------------------------------

/** The name of a field; its title, if that says more. Many schemas have titles made from the names. */
function labelOf(name, { title }) {
  const plain = (text) => text.toLowerCase().replace(/[\s_-]/g, "");
  return typeof title !== "string" || plain(title) === plain(name) ? name : cut(title);
}

function labelled({ label, isRequired, hint }, input) {
  input.id = `field-${++numbers}`;
  return make("div.field", {},
    label && make("label", { for: input.id }, label, !isRequired && make("span.sub", {}, " optional")),
    input, hint && make("span.sub.hint", {}, hint));
}

function textField(at) {
  const input = make("textarea", { rows: 1, value: at.initial ?? "" });
  const read = () => (input.value === "" && !at.isRequired ? undefined : input.value);
  return { element: labelled(at, input), read };
}

function numberField(at, schema) {
  const input = make("input", { inputmode: "decimal", autocomplete: "off", value: at.initial ?? "" });
  const read = () => {
    const text = input.value.trim(), value = Number(text);
    if (text === "" && !at.isRequired) return undefined;
    if (text === "" || !Number.isFinite(value)) throw new FieldError(at.label, "must be a number", input);
    if (schema.type === "integer" && !Number.isInteger(value)) throw new FieldError(at.label, "must be a whole number", input);
    return value;
  };
  return { element: labelled(at, input), read };
}

function flagField(at) {
  // A box that nobody has touched would say no.
  if (at.initial === undefined) return enumField([true, false], at);
  const input = make("input", { type: "checkbox", checked: at.initial === true });
  const element = make("div.field.flag", {}, make("label", {}, input, " ", at.label || "yes"), at.hint && make("span.sub.hint", {}, at.hint));
  return { element, read: () => input.checked };
}

function enumField(values, at) {
  const shown = (value) => (typeof value === "string" ? value : { true: "yes", false: "no" }[value] ?? JSON.stringify(value));
  const isOpen = !at.isRequired || at.initial === undefined;
  const options = values.map((value, place) => make("option", { value: String(place), selected: value === at.initial }, shown(value)));
  const input = make("select", {}, isOpen && make("option", { value: "" }, "—"), options);
  const read = () => {
    if (input.value !== "") return values[Number(input.value)];
    if (at.isRequired) throw new FieldError(at.label, "must be chosen", input);
    return undefined;
  };
  return { element: labelled(at, input), read };
}

function constField(value, at) {
  return { element: make("div.field", {}, make("span.sub", {}, `${at.label}: ${JSON.stringify(value)}`)), read: () => value };
}

/** Any value, typed as JSON. Other words are a text where one may stand, but for what begins like JSON. */
function jsonField(at) {
  const isFree = at.depth === 0;
  const input = make("textarea.code", { rows: isFree ? 2 : 1, spellcheck: "false", placeholder: at.takesText ? "a text, or JSON" : "JSON" });
  const write = (value) => { input.value = value === undefined ? "" : JSON.stringify(value, null, 2); };
  write(at.initial);
  const read = () => {
    const text = input.value.trim();
    if (text === "" && !at.isRequired) return undefined;
    try {
      return JSON.parse(text);
    } catch (error) {
      if (at.takesText && !/^[[{"]/.test(text)) return input.value;
      throw new FieldError(at.label, `must be JSON: ${error.message}`, input);
    }
  };
  if (isFree && !at.label) input.setAttribute("aria-label", "Answer");
  return { element: labelled(at, input), read, write, isFree };
}

/** The messages of a chat: what a user says, or a list of messages as JSON. */
function messageField(at) {
  const hint = "what the user says; or a list of messages as JSON";
  const input = make("textarea", { rows: 2 });
  const read = () => {
    const text = input.value.trim();
    if (text === "" && !at.isRequired) return undefined;
    try {
      const value = JSON.parse(text);
      if (Array.isArray(value)) return value;
    } catch { /* a plain text */ }
    if (text === "") throw new FieldError(at.label, "must not be empty", input);
    return [{ role: "user", content: input.value }];
  };
  return { element: labelled({ ...at, hint }, input), read };
}

// -- lists and objects -----------------------------------------------------------------------------------------

function listField(at, schema) {
  const rows = make("div.rows"), fields = new Set();
  const add = (initial) => {
    const items = { ...(schema.items ?? {}), ...(initial === undefined ? {} : { default: initial }) };
    const field = schemaField(items, { ...at, name: "", label: "", depth: at.depth + 1, isRequired: true });
    field.element.querySelector("input, textarea, select")?.setAttribute("aria-label", at.label || "item");
    const row = make("div.list-row", {}, field.element,
      button("×", () => { fields.delete(field); row.remove(); }, { kind: "plain", title: "Remove" }));
    fields.add(field);
    rows.append(row);
    return field;
  };
  for (const value of Array.isArray(at.initial) ? at.initial : []) add(value);
  const more = button(`+ ${at.label || "item"}`, () => add().element.querySelector("input, textarea, select")?.focus(), { kind: "small" });
  const element = make("fieldset", {}, at.label && make("legend", {}, at.label, !at.isRequired && make("span.sub", {}, " optional")),
    at.hint && make("span.sub.hint", {}, at.hint), rows, more);
  const read = () => {
    const values = [...fields].map((field) => field.read());
    return values.length || at.isRequired ? values : undefined;
  };
  return { element, read };
}

function groupField(at, schema) {
  const properties = Object.entries(schema.properties ?? {});
  if (!properties.length) return jsonField({ ...at, initial: at.initial ?? {}, depth: Math.max(at.depth, 1) });
  if (!at.isRequired && at.initial == null) return addedField(at, () => groupField({ ...at, isRequired: true }, schema));
  const required = new Set(schema.required ?? []);
  const fields = properties.map(([name, each]) => {
    const initial = at.initial?.[name];
    const own = initial === undefined ? each : { ...each, default: initial };
    return [name, schemaField(own, { name, label: labelOf(name, own), root: at.root, depth: at.depth + 1, isRequired: required.has(name) })];
  });
  const inside = fields.map(([, field]) => field.element);
  const element = at.depth === 0 ? make("div.fields", {}, inside)
    : make("fieldset", {}, make("legend", {}, at.label), inside);
  const read = () => Object.fromEntries(fields.map(([name, field]) => [name, field.read()]).filter(([, value]) => value !== undefined));
  return { element, read };
}

/** An object that is left out unless somebody adds it. */
function addedField(at, makeField) {
  let field = null;
  const element = make("div");
  const draw = () => fill(element, field
    ? [field.element, button(`− ${at.label}`, () => { field = null; draw(); }, { kind: "small" })]
    : button(`+ ${at.label}`, () => { field = makeField(); draw(); }, { kind: "small" }));
  draw();
  return { element, read: () => field?.read() };
}
