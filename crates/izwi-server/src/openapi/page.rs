//! The document as one HTML page: no script, no other host. Knows OpenAPI, and no route.

use std::fmt::Write as _;

use base64::Engine as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("page.css");
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];
/// Where the examples send their requests.
const EXAMPLE_HOST: &str = "http://127.0.0.1:8080";

/// One route of the document.
struct Route<'a> {
    path: &'a str,
    method: &'a str,
    operation: &'a Value,
}

impl Route<'_> {
    fn id(&self) -> &str {
        self.operation["operationId"].as_str().unwrap_or_default()
    }

    fn is_socket(&self) -> bool {
        self.operation["responses"].get("101").is_some()
    }

    /// Name and class of the method.
    fn label(&self) -> &str {
        if self.is_socket() { "ws" } else { self.method }
    }
}

/// The page, and the `Content-Security-Policy` to send with it: nothing but its own style.
pub(super) fn render(document: &Value) -> (String, String) {
    let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let routes = routes(document);
    let mut page = String::new();
    let title = escape(text(&document["info"], "title"));
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{title} API</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<div class=\"layout\">\n"
    );
    menu(&mut page, document, &routes);
    let _ = write!(
        page,
        "<main>\n<h1>{title} API <span class=\"soft\">{}</span></h1>\n{}\
         <p>This page and <a href=\"/openapi.json\">openapi.json</a> (OpenAPI {}) are made of the types of the server. \
         A member that is not required may also be null.</p>\n",
        escape(text(&document["info"], "version")),
        prose(text(&document["info"], "description")),
        escape(text(document, "openapi")),
    );
    for tag in list(&document["tags"]) {
        let name = text(tag, "name");
        let _ = writeln!(
            page,
            "<h2 id=\"{}\">{}</h2>\n{}",
            escape(name),
            capital(name),
            prose(text(tag, "description"))
        );
        for route in routes.iter().filter(|route| has_tag(route, name)) {
            describe(&mut page, route, document);
        }
    }
    page.push_str("<h2 id=\"types\">Types</h2>\n");
    for (name, schema) in members(&document["components"]["schemas"]) {
        let _ = write!(page, "<section class=\"route\" id=\"type-{0}\">\n<h3>{0}</h3>\n", escape(name));
        type_body(&mut page, schema);
        page.push_str("</section>\n");
    }
    page.push_str("</main>\n</div>\n</body>\n</html>\n");
    (page, policy)
}

fn routes(document: &Value) -> Vec<Route<'_>> {
    let mut routes = Vec::new();
    for (path, item) in members(&document["paths"]) {
        let of_method = |method: &&'static str| Some(Route { path, method, operation: item.get(*method)? });
        routes.extend(METHODS.iter().filter_map(of_method));
    }
    routes
}

fn has_tag(route: &Route<'_>, name: &str) -> bool {
    list(&route.operation["tags"]).any(|tag| tag == name)
}

fn menu(page: &mut String, document: &Value, routes: &[Route<'_>]) {
    page.push_str("<nav>\n<details class=\"menu\"><summary>Routes</summary>\n");
    for tag in list(&document["tags"]) {
        let name = text(tag, "name");
        let _ = writeln!(page, "<h4><a href=\"#{0}\">{0}</a></h4>\n<ul>", escape(name));
        for route in routes.iter().filter(|route| has_tag(route, name)) {
            let (label, id, path) = (route.label(), escape(route.id()), escape(route.path));
            let _ = writeln!(
                page,
                "<li><a href=\"#{id}\"><span class=\"method {label}\">{label}</span>{path}</a></li>"
            );
        }
        page.push_str("</ul>\n");
    }
    page.push_str(
        "<h4>More</h4>\n<ul>\n<li><a href=\"/docs/protocol.md\">Messages of the WebSockets</a></li>\n\
         <li><a href=\"#types\">Types</a></li>\n<li><a href=\"/openapi.json\">openapi.json</a></li>\n</ul>\n</details>\n</nav>\n",
    );
}

fn describe(page: &mut String, route: &Route<'_>, document: &Value) {
    let (label, path, operation) = (route.label(), escape(route.path), route.operation);
    let _ = write!(
        page,
        "<section class=\"route\" id=\"{}\">\n<h3><span class=\"method {label}\">{label}</span> <code>{path}</code></h3>\n\
         <p>{}</p>\n{}",
        escape(route.id()),
        inline(text(operation, "summary")),
        prose(text(operation, "description")),
    );
    if !route.is_socket() {
        let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(&curl(route, document)));
    }
    let parameters: Vec<&Value> = list(&operation["parameters"]).collect();
    if !parameters.is_empty() {
        page.push_str("<h4>Parameters</h4>\n<ul class=\"fields\">\n");
        for parameter in parameters {
            let is_required = parameter["required"] == true;
            let place = format!(" in {}", text(parameter, "in"));
            field(
                page,
                text(parameter, "name"),
                &parameter["schema"],
                is_required,
                text(parameter, "description"),
                &place,
            );
        }
        page.push_str("</ul>\n");
    }
    for (media_type, content) in members(&operation["requestBody"]["content"]) {
        let schema = &content["schema"];
        let _ = writeln!(page, "<h4>Body <code>{}</code></h4>", escape(media_type));
        type_body(page, resolve(schema, document));
    }
    page.push_str("<h4>Answers</h4>\n<ul class=\"answers\">\n");
    let (good, bad): (Vec<_>, Vec<_>) =
        members(&operation["responses"]).partition(|(status, _)| status.starts_with(['1', '2']));
    for (status, response) in good {
        answer(page, status, response);
    }
    let statuses: Vec<&str> = bad.iter().map(|(status, _)| status.as_str()).collect();
    let _ = writeln!(
        page,
        "</ul>\n<details><summary>Errors: {}</summary>\n<ul class=\"answers\">",
        statuses.join(", ")
    );
    for (status, response) in bad {
        answer(page, status, response);
    }
    page.push_str("</ul>\n</details>\n</section>\n");
}

fn answer(page: &mut String, status: &str, response: &Value) {
    let _ = write!(page, "<li><span class=\"status\">{}</span>", escape(status));
    for (media_type, content) in members(&response["content"]) {
        let _ = write!(page, " <code>{}</code>", escape(media_type));
        let schema = content.get("schema").filter(|schema| **schema != Value::Bool(true));
        // Of an event, the type of its data.
        let data = schema.map(|schema| schema["properties"]["data"].get("contentSchema").unwrap_or(schema));
        if let Some(name) = data.map(type_name).filter(|name| !name.is_empty()) {
            let _ = write!(page, " <span class=\"type\">{name}</span>");
        }
    }
    page.push_str(&prose(text(response, "description")));
    let headers: Vec<String> =
        members(&response["headers"]).map(|(name, _)| format!("<code>{}</code>", escape(name))).collect();
    if !headers.is_empty() {
        let _ = write!(page, "<p class=\"soft\">Headers: {}</p>", headers.join(", "));
    }
    page.push_str("</li>\n");
}

/// The members of a type, or what it is.
fn type_body(page: &mut String, schema: &Value) {
    page.push_str(&prose(text(schema, "description")));
    let variants = list(&schema["oneOf"]).chain(list(&schema["allOf"])).chain(list(&schema["anyOf"]));
    let variants: Vec<&Value> = variants.collect();
    if schema.get("properties").is_none() && variants.is_empty() {
        let _ = writeln!(page, "<p class=\"type\">{}</p>", type_name(schema));
        return;
    }
    for variant in variants {
        match variant.get("properties") {
            Some(_) => type_body(page, variant),
            None => {
                let _ = writeln!(page, "<p class=\"type\">{}</p>", type_name(variant));
            }
        }
    }
    page.push_str("<ul class=\"fields\">\n");
    let required: Vec<&str> = list(&schema["required"]).filter_map(Value::as_str).collect();
    let (first, others): (Vec<_>, Vec<_>) =
        members(&schema["properties"]).partition(|(name, _)| required.contains(&name.as_str()));
    for (name, member) in first.iter().chain(&others) {
        field(page, name, member, required.contains(&name.as_str()), text(member, "description"), "");
    }
    page.push_str("</ul>\n");
}

fn field(page: &mut String, name: &str, schema: &Value, is_required: bool, description: &str, place: &str) {
    let mark = if is_required { " <span class=\"required\">required</span>" } else { "" };
    let _ = writeln!(
        page,
        "<li><code>{}</code> <span class=\"type\">{}{}{}</span>{mark}{}</li>",
        escape(name),
        type_name(schema),
        limits(schema),
        escape(place),
        prose(description),
    );
}

/// The type in words, with links to the types it names.
fn type_name(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("<a href=\"#type-{0}\">{0}</a>", escape(name));
    }
    // An optional member may be null as well; that is said once.
    let values = list(&schema["enum"]).filter(|value| !value.is_null());
    let values: Vec<String> = values.map(|value| format!("<code>{}</code>", plain(value))).collect();
    if !values.is_empty() {
        return values.join(", ");
    }
    let variants = list(&schema["oneOf"]).chain(list(&schema["anyOf"]));
    let variants: Vec<String> = variants.filter(|variant| variant["type"] != "null").map(type_name).collect();
    if !variants.is_empty() {
        return variants.join(" or ");
    }
    let named: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        names => list(names).filter_map(Value::as_str).filter(|name| *name != "null").collect(),
    };
    let word = |name: &str| match name {
        "array" => format!("array of {}", type_name(&schema["items"])),
        "object" if schema["properties"].get("id").is_some() => "object with <code>id</code>".to_owned(),
        other => escape(other),
    };
    let mut words = named.into_iter().map(word).collect::<Vec<_>>().join(" or ");
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        let _ = write!(words, " of {}", type_name(values));
    }
    words
}

/// Range and default of a field.
fn limits(schema: &Value) -> String {
    let mut words = String::new();
    let of = |name: &str| schema.get(name).map(plain);
    match (of("minimum"), of("exclusiveMinimum"), of("maximum").filter(|most| most.len() < 18)) {
        (Some(least), _, Some(most)) => words = format!(", {least} to {most}"),
        (Some(least), _, None) => words = format!(", from {least}"),
        (None, Some(least), Some(most)) => words = format!(", above {least}, at most {most}"),
        (None, _, Some(most)) => words = format!(", at most {most}"),
        (None, _, None) => {}
    }
    if let Some(most) = of("maxLength") {
        let _ = write!(words, ", at most {most} characters");
    }
    if let Some(default) = of("default") {
        let _ = write!(words, ", default <code>{default}</code>");
    }
    words
}

/// A request with `curl`.
fn curl(route: &Route<'_>, document: &Value) -> String {
    let path = route.path.replace("{id}", "ID");
    let mut command = format!("curl {EXAMPLE_HOST}{path}");
    if route.method == "delete" {
        command.push_str(" -X DELETE");
    }
    let content = &route.operation["requestBody"]["content"];
    if let Some(form) = content.get("multipart/form-data") {
        let schema = resolve(&form["schema"], document);
        let is_file = |schema: &Value| schema.get("contentMediaType").is_some();
        let files = members(&schema["properties"]).filter(|(_, member)| is_file(member)).take(1);
        for (name, _) in files {
            let _ = write!(command, " \\\n  -F {name}=@recording.wav");
        }
        for name in list(&schema["required"]).filter_map(Value::as_str) {
            if !is_file(&schema["properties"][name]) {
                let example = schema["properties"][name]["examples"][0].as_str();
                let value = example.map_or_else(|| name.to_uppercase(), str::to_owned);
                let _ = write!(command, " \\\n  -F {name}={value}");
            }
        }
    } else if let Some(example) = content.get("application/json").and_then(|json| json.get("example")) {
        let _ = write!(command, " \\\n  --json '{example}'");
        let is_audio = |(name, _): (&String, &Value)| name.starts_with("audio/");
        if members(&route.operation["responses"]["200"]["content"]).any(is_audio) {
            command.push_str(" \\\n  -o speech.wav");
        }
    }
    command
}

/// The schema that a reference names.
fn resolve<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    name.and_then(|pointer| document.pointer(pointer)).unwrap_or(schema)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// A value without quotes around a text.
fn plain(value: &Value) -> String {
    escape(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters
        .next()
        .map_or_else(String::new, |first| escape(&(first.to_uppercase().to_string() + letters.as_str())))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Paragraphs of Markdown with code and links.
fn prose(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty());
    paragraphs.map(|paragraph| format!("<p>{}</p>\n", inline(paragraph))).collect()
}

/// Code and links in a line of Markdown.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (position, part) in text.split('`').enumerate() {
        if position % 2 == 1 {
            let _ = write!(out, "<code>{}</code>", escape(part));
        } else {
            out.push_str(&links(part));
        }
    }
    out
}

fn links(text: &str) -> String {
    let Some((before, rest)) = text.split_once('[') else { return escape(text) };
    let link = rest.split_once("](").and_then(|(label, rest)| {
        let (target, rest) = rest.split_once(')')?;
        target.starts_with(['/', '#']).then(|| (label, target, rest))
    });
    match link {
        Some((label, target, rest)) => {
            format!("{}<a href=\"{}\">{}</a>{}", escape(before), escape(target), escape(label), links(rest))
        }
        None => format!("{}[{}", escape(before), links(rest)),
    }
}
