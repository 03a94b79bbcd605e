//! The document against the types, the checks and the page.

use std::collections::BTreeSet;
use std::time::Duration;

use izwi_core::engine::{GenerationParams, SpeechOptions};

use super::*;
use crate::alignment_format::AlignmentFormat;
use crate::dialect::Dialects;
use crate::dto::listing::VoiceRequest;
use crate::dto::schemas;
use crate::dto::speech::SpeechRequest;
use crate::dto::transcription::TranscriptionRequest;
use crate::encoding;
use crate::extract::{parse_json, parse_with_options};
use crate::transcript_format::TranscriptFormat;

fn document() -> Value {
    crate::routes::document(&ServerConfig::default(), Dialects::default())
}

/// Every `$ref` of the document.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(path)) = members.get("$ref") {
                found.insert(path.clone());
            }
            members.values().for_each(|member| references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_to_a_type_and_every_type_is_used() {
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for path in &found {
        assert!(document.pointer(path.trim_start_matches('#')).is_some(), "{path}");
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(found.contains(&format!("#/components/schemas/{name}")), "{name} is not used");
    }
}

#[test]
fn every_operation_has_a_summary_a_section_and_errors_with_the_envelope() {
    let document = document();
    let tags: Vec<&Value> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(!operation["summary"].as_str().unwrap_or_default().is_empty(), "{method} {path}");
            assert!(tags.contains(&&operation["tags"][0]), "{method} {path}: {}", operation["tags"]);
            assert!(ids.insert(operation["operationId"].to_string()), "{method} {path}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                if status.starts_with(['4', '5']) {
                    let schema = &response["content"]["application/json"]["schema"];
                    let envelope = schema.pointer("/anyOf/0/$ref").unwrap_or(&schema["$ref"]);
                    assert_eq!(envelope, "#/components/schemas/Error", "{method} {path} {status}");
                }
            }
        }
    }
}

#[test]
fn the_members_of_a_speech_request_are_those_that_are_read() {
    let document = document();
    let members = document["components"]["schemas"]["SpeechRequest"]["properties"].as_object().unwrap();
    for name in members.keys() {
        let body = json!({name: {"wrong": [[]]}}).to_string();
        let error = parse_with_options::<SpeechRequest>(body.as_bytes()).unwrap_err();
        assert_eq!(error.param(), Some(name.as_str()), "{name} is not read: {error}");
    }
    // And the other way: the members that the options have.
    let options = format!("{:?}", SpeechOptions::default());
    let names = options.trim_start_matches("SpeechOptions { ").trim_end_matches(" }").split(", ");
    let names: BTreeSet<&str> = names.filter_map(|member| member.split(':').next()).collect();
    let described: BTreeSet<&str> = bodies::speech_options().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, described);
}

#[test]
fn the_members_of_a_transcription_request_are_those_that_are_read() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    let members = schemas["TranscriptionRequest"]["properties"].as_object().unwrap();
    for name in members.keys() {
        let alias = format!("{name}[]");
        let is_list = schemas["TranscriptionForm"]["properties"].get(&alias).is_some();
        for name in [Some(name), Some(&alias).filter(|_| is_list)].into_iter().flatten() {
            let body = json!({name: [[]]}).to_string();
            let error = parse_with_options::<TranscriptionRequest>(body.as_bytes()).unwrap_err();
            assert!(error.param().unwrap().starts_with(name), "{name} is not read: {error}");
        }
    }
}

#[test]
fn the_members_of_a_voice_request_are_those_that_are_read() {
    let document = document();
    let members = document["components"]["schemas"]["VoiceRequest"]["properties"].as_object().unwrap();
    for name in members.keys() {
        let body = json!({name: {"wrong": [[]]}}).to_string();
        let error = parse_json::<VoiceRequest>(body.as_bytes()).unwrap_err();
        assert_eq!(error.param(), Some(name.as_str()), "{name} is not read: {error}");
    }
}

#[test]
fn the_ranges_of_sampling_options_are_those_that_are_checked() {
    for (name, schema) in bodies::speech_options() {
        let schema = serde_json::to_value(schema).unwrap();
        let check = |value: f64| {
            let options: SpeechOptions = serde_json::from_value(json!({name: value})).unwrap();
            GenerationParams::default().with(&options).sampling().check().is_ok()
        };
        if !matches!(name, "temperature" | "top_p" | "repetition_penalty") {
            continue;
        }
        let (least, most) = (schema["minimum"].as_f64().unwrap(), schema["maximum"].as_f64().unwrap());
        assert!(check(least) && !check(least - 0.01), "{name}");
        assert!(check(most) && !check(most + 0.01), "{name}");
    }
}

#[test]
fn the_limit_of_text_is_the_configured_one() {
    let config = ServerConfig { max_input_chars: 77, upload_timeout: Duration::ZERO, ..Default::default() };
    let document = crate::routes::document(&config, Dialects::default());
    assert_eq!(document["components"]["schemas"]["SpeechRequest"]["properties"]["input"]["maxLength"], 77);
}

#[test]
fn the_page_shows_every_route_and_field_and_names_no_other_host() {
    let document = document();
    let (page, policy) = page::render(&document);
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("<code>{path}</code>")), "{path}");
    }
    for schema in document["components"]["schemas"].as_object().unwrap().values() {
        for name in schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name) {
            assert!(page.contains(&format!("<code>{name}</code>")), "{name}");
        }
    }
    for link in page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        let is_local = match link.strip_prefix('#') {
            Some(id) => page.contains(&format!("id=\"{id}\"")),
            None => document["paths"].get(link.split('#').next().unwrap()).is_some(),
        };
        assert!(is_local, "{link}");
    }
    assert!(!page.contains("src=") && !page.contains("<script"), "it loads nothing");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
}

#[test]
fn markup_in_descriptions_is_escaped() {
    let document = json!({
        "info": {"title": "<b>", "version": "\"1\"", "description": "a < b `<i>` [x](javascript:1) [y](/docs) ["},
        "tags": [], "paths": {}, "components": {"schemas": {}},
    });
    let (page, _) = page::render(&document);
    assert!(
        page.contains("a &lt; b <code>&lt;i&gt;</code> [x](javascript:1) <a href=\"/docs\">y</a> ["),
        "{page}"
    );
    assert!(page.contains("<title>&lt;b&gt; API</title>"));
}

#[test]
fn the_formats_are_those_that_are_read() {
    let names: Vec<&str> = encoding::http_formats().map(|(format, _)| format.name).collect();
    let values = |schema: utoipa::openapi::Object| schema.enum_values.unwrap_or_default();
    let speech: Vec<Value> = values(schemas::speech_format());
    assert_eq!(speech[..speech.len() - 1], names[..], "and null");
    assert_eq!(encoding::for_http(None).unwrap().0.name, schemas::SPEECH_FORMAT);
    assert_eq!(TranscriptFormat::names(), schemas::TRANSCRIPT_FORMATS);
    assert_eq!(AlignmentFormat::names(), schemas::ALIGNMENT_FORMATS);
}
