//! The table of settings. A new setting is one row here and nothing elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use izwi_core::engine::SchedulingPolicy;
use izwi_core::engine::request::MAX_TEXT_CHARS;

use super::LogFormat;
use super::field::{Kind, Reach, Section, Setting, Value};

use Reach::{Everywhere, Section as OfSection, Tuning};
use Section::{Engine, Server, Top};

const ANY_COUNT: Kind = Kind::Whole { min: 1, max: u64::MAX };
/// Each chunk that waits takes memory.
const CHUNKS: Kind = Kind::Whole { min: 1, max: 65_536 };
const BATCH: Kind = Kind::Whole { min: 1, max: 1_024 };
const THREADS: Kind = Kind::Whole { min: 1, max: 1_024 };
const PORT: Kind = Kind::Whole { min: 0, max: 65_535 };
/// Up to what the engine takes in one request.
const TEXT: Kind = Kind::Whole { min: 1, max: MAX_TEXT_CHARS as u64 };
/// Up to what a semaphore counts on every platform.
const PERMITS: Kind = Kind::Whole { min: 1, max: 1 << 20 };
const BYTES: Kind = Kind::Whole { min: 1_024, max: 1 << 30 };
/// Up to what a 32-bit machine can hold at once.
const UPLOAD: Kind = Kind::Whole { min: 1_024, max: 1 << 30 };
/// A month: what is to stay longer stays for ever.
const TTL: Kind = Kind::Whole { min: 0, max: 2_592_000 };
/// An hour: a client that waits longer has gone.
const LOADING: Kind = Kind::Whole { min: 1, max: 3_600 };
/// A petabyte in bytes still fits.
const MEBIBYTES: Kind = Kind::Whole { min: 0, max: 1 << 30 };
/// hyper refuses a smaller buffer.
const HEAD_BYTES: Kind = Kind::Whole { min: 8_192, max: 1 << 20 };
/// A day: what waits longer was forgotten.
const SECONDS: Kind = Kind::Whole { min: 1, max: 86_400 };

/// A row with a number in a field of any integer type.
macro_rules! whole {
    ($section:ident, $reach:ident, $name:literal, $kind:ident $value_name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Whole(u64::try_from(settings.$($field).+).unwrap_or(u64::MAX)),
            set: |settings, value| {
                settings.$($field).+ = value.whole()?;
                Ok(())
            },
            ..row($section, $reach, $name, $kind, $value_name, $doc)
        }
    };
}

/// A row with whole seconds in a field that is a duration.
macro_rules! seconds {
    ($section:ident, $reach:ident, $name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Whole(settings.$($field).+.as_secs()),
            set: |settings, value| {
                settings.$($field).+ = Duration::from_secs(value.whole()?);
                Ok(())
            },
            ..row($section, $reach, $name, SECONDS, "SECONDS", $doc)
        }
    };
}

/// A row with yes or no.
macro_rules! switch {
    ($section:ident, $reach:ident, $name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Switch(settings.$($field).+),
            set: |settings, value| {
                settings.$($field).+ = value.switch()?;
                Ok(())
            },
            ..row($section, $reach, $name, Kind::Switch, "true|false", $doc)
        }
    };
}

/// A row with several texts.
macro_rules! list {
    ($section:ident, $reach:ident, $name:literal, $value_name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::List(settings.$($field).+.clone()),
            set: |settings, value| {
                settings.$($field).+ = value.list()?.to_vec();
                Ok(())
            },
            ..row($section, $reach, $name, Kind::List, $value_name, $doc)
        }
    };
}

/// A row with what its field prints as and is parsed from.
macro_rules! text {
    ($section:ident, $reach:ident, $name:literal, $kind:expr, $value_name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Text(settings.$($field).+.to_string()),
            set: |settings, value| {
                settings.$($field).+ = value.text()?.parse().map_err(|error| format!("{error}"))?;
                Ok(())
            },
            ..row($section, $reach, $name, $kind, $value_name, $doc)
        }
    };
}

/// The part of a row that is plain data.
const fn row(
    section: Section,
    reach: Reach,
    name: &'static str,
    kind: Kind,
    value_name: &'static str,
    doc: &'static str,
) -> Setting {
    Setting {
        section,
        name,
        kind,
        value_name,
        doc,
        reach,
        default_words: None,
        foreign_variable: None,
        get: |_| Value::Unset,
        set: |_, _| Ok(()),
    }
}

/// Every setting, in the order of pages and help.
pub(crate) static TABLE: &[Setting] = &[
    Setting {
        default_words: Some("the platform's data folder"),
        get: |settings| Value::Text(settings.home.display().to_string()),
        set: |settings, value| {
            settings.home = PathBuf::from(value.text()?);
            Ok(())
        },
        ..row(
            Top,
            Everywhere,
            "home",
            Kind::Text,
            "DIR",
            "Folder of pulled models, saved voices and own manifests",
        )
    },
    Setting {
        get: |settings| {
            let folder = settings.engine.models_dir.as_ref();
            folder.map_or(Value::Unset, |folder| Value::Text(folder.display().to_string()))
        },
        set: |settings, value| {
            settings.engine.models_dir =
                Some(PathBuf::from(value.text()?)).filter(|f| !f.as_os_str().is_empty());
            Ok(())
        },
        ..row(
            Top,
            Everywhere,
            "models_dir",
            Kind::Text,
            "DIR",
            "Folder of models that you keep yourself, one subfolder per name; they are taken as they are, not verified",
        )
    },
    Setting {
        default_words: Some("info for serve, warn elsewhere"),
        foreign_variable: Some("RUST_LOG"),
        get: |settings| settings.log_level.clone().map_or(Value::Unset, Value::Text),
        set: |settings, value| {
            let text = value.text()?;
            tracing_subscriber::EnvFilter::builder()
                .parse(text)
                .map_err(|error| format!("'{text}': {error}"))?;
            settings.log_level = Some(text.to_owned());
            Ok(())
        },
        ..row(
            Top,
            Everywhere,
            "log_level",
            Kind::Text,
            "LEVEL",
            "What is logged to standard error: error, warn, info, debug, trace, or a filter like izwi_core=debug",
        )
    },
    Setting {
        get: |settings| Value::Text(settings.log_format.label().to_owned()),
        set: |settings, value| {
            settings.log_format = LogFormat::from_label(value.text()?)?;
            Ok(())
        },
        ..row(
            Top,
            Everywhere,
            "log_format",
            Kind::Choice(&["text", "json"]),
            "FORMAT",
            "Form of a line of the log",
        )
    },
    text!(
        Engine,
        OfSection,
        "model",
        Kind::Text,
        "NAME",
        engine.model,
        "Model that speaks, as `izwi list` shows it"
    ),
    text!(
        Engine,
        Everywhere,
        "device",
        Kind::Text,
        "DEVICE",
        engine.device,
        "Where to compute: auto, cpu, metal, metal:N, cuda or cuda:N"
    ),
    text!(
        Engine,
        OfSection,
        "dtype",
        Kind::Choice(&["auto", "f32", "bf16", "f16", "q8", "q4"]),
        "TYPE",
        engine.dtype,
        "How the weights of large models are kept: auto is q8 on the CPU and f32 elsewhere; q4 harms small models"
    ),
    switch!(
        Engine,
        Everywhere,
        "weight_cache",
        engine.weight_cache,
        "Whether large models keep their weights as they are computed with in files beside them, to load faster"
    ),
    Setting {
        default_words: Some("physical cores, at most 8"),
        foreign_variable: Some("RAYON_NUM_THREADS"),
        ..whole!(Engine, Everywhere, "threads", THREADS "N", engine.num_threads, "Compute threads; never more than free cores")
    },
    whole!(Engine, Tuning, "max_batch_size", BATCH "N", engine.max_batch_size, "The most sequences in one step"),
    whole!(
        Engine, Tuning, "max_running_requests", ANY_COUNT "N", engine.max_running_requests,
        "The most sequences admitted at once; they share the steps in turn"
    ),
    whole!(
        Engine, Tuning, "max_waiting_requests", ANY_COUNT "N", engine.max_waiting_requests,
        "The most requests that may wait; more are turned away"
    ),
    whole!(
        Engine, Tuning, "max_tokens_per_step", ANY_COUNT "N", engine.max_tokens_per_step,
        "The most tokens computed in one step"
    ),
    whole!(
        Engine, Tuning, "max_seq_len", ANY_COUNT "N", engine.max_seq_len,
        "The most tokens of one sequence, prompt and generated together"
    ),
    Setting {
        get: |settings| Value::Text(settings.engine.scheduling_policy.label().to_owned()),
        set: |settings, value| {
            settings.engine.scheduling_policy = value.text()?.parse()?;
            Ok(())
        },
        ..row(
            Engine,
            Tuning,
            "scheduling_policy",
            Kind::Choice(SchedulingPolicy::LABELS),
            "POLICY",
            "Who goes first: first come, higher priority, or the stream that runs dry soonest",
        )
    },
    whole!(Engine, Tuning, "block_size", ANY_COUNT "N", engine.block_size, "Tokens in a KV block"),
    whole!(Engine, Tuning, "max_blocks", ANY_COUNT "N", engine.max_blocks, "Blocks in the KV pool"),
    switch!(
        Engine,
        Tuning,
        "enable_prefix_caching",
        engine.enable_prefix_caching,
        "Whether equal beginnings of prompts share KV blocks"
    ),
    switch!(
        Engine,
        Tuning,
        "enable_chunked_prefill",
        engine.enable_chunked_prefill,
        "Whether long prompts are computed over several steps"
    ),
    whole!(
        Engine, Tuning, "chunked_prefill_threshold", ANY_COUNT "N", engine.chunked_prefill_threshold,
        "Prompts of more tokens than this are computed in chunks of at most this size"
    ),
    switch!(
        Engine,
        Tuning,
        "enable_preemption",
        engine.enable_preemption,
        "Whether running sequences may give up their blocks to more urgent ones"
    ),
    switch!(
        Engine,
        Tuning,
        "enable_optimistic_scheduling",
        engine.enable_optimistic_scheduling,
        "Whether the next step is scheduled while the current one runs"
    ),
    whole!(
        Engine, Tuning, "streaming_chunk_size", ANY_COUNT "N", engine.streaming_chunk_size,
        "Samples in a streamed chunk; 4800 are 200 ms at 24 kHz"
    ),
    whole!(
        Engine, Tuning, "stream_buffer_chunks", CHUNKS "N", engine.stream_buffer_chunks,
        "Chunks that may wait for a slow reader before its sequence is paused"
    ),
    seconds!(
        Engine,
        Tuning,
        "slow_client_timeout_s",
        engine.slow_client_timeout,
        "How long a paused reader may stay away before its request is dropped"
    ),
    seconds!(
        Engine,
        Tuning,
        "max_reference_s",
        engine.max_reference_duration,
        "The longest recording of a voice to speak in"
    ),
    seconds!(
        Engine,
        Tuning,
        "max_turn_s",
        engine.max_turn_duration,
        "The longest recording of what is said in one turn of a conversation"
    ),
    whole!(
        Engine, Tuning, "max_conversation_turns", ANY_COUNT "N", engine.max_conversation_turns,
        "The most turns of a conversation that are remembered; the older half is then forgotten"
    ),
    text!(Server, OfSection, "host", Kind::Text, "ADDRESS", server.host, "Address to listen on"),
    whole!(Server, OfSection, "port", PORT "PORT", server.port, "Port to listen on; 0 takes a free one"),
    Setting {
        get: |settings| settings.server.config.api_key.clone().map_or(Value::Unset, Value::Secret),
        set: |settings, value| {
            let key = value.text()?;
            if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err("the key must be printable ASCII without blanks".to_owned());
            }
            settings.server.config.api_key = Some(key.to_owned());
            Ok(())
        },
        ..row(
            Server,
            OfSection,
            "api_key",
            Kind::Secret,
            "KEY",
            "Key that clients must send; other users of this machine can read flags, so prefer the variable",
        )
    },
    switch!(
        Server,
        OfSection,
        "insecure",
        server.insecure,
        "Whether an address that other machines reach may be bound without a key"
    ),
    text!(
        Server,
        OfSection,
        "asr_model",
        Kind::Text,
        "NAME",
        server.asr_model,
        "Model that listens, as `izwi list` shows it; none for a server that only speaks"
    ),
    list!(
        Server,
        OfSection,
        "models",
        "NAMES",
        server.models,
        "Models to install and offer beside the default ones, separated by commas; installed ones are offered anyway"
    ),
    whole!(
        Server, OfSection, "model_ttl_s", TTL "SECONDS", server.model_ttl_s,
        "How long a model that is not a default one stays loaded unused; 0 keeps it"
    ),
    whole!(
        Server, OfSection, "memory_budget_mib", MEBIBYTES "MIB", server.memory_budget_mib,
        "What loaded models may take together; unused ones leave to make room; 0 sets no limit"
    ),
    whole!(
        Server, Tuning, "load_timeout_s", LOADING "SECONDS", server.load_timeout_s,
        "How long a request waits for its model to load"
    ),
    list!(
        Server,
        OfSection,
        "allow_host",
        "HOST",
        server.config.allowed_hosts,
        "Host names to answer to, beside loopback names and the bound address"
    ),
    Setting {
        set: |settings, value| {
            let origins = value.list()?;
            if let Some(bad) = origins.iter().find(|origin| !origin.contains("://")) {
                return Err(format!("'{bad}' is not an origin like https://app.example.com"));
            }
            settings.server.config.allowed_origins = origins.to_vec();
            Ok(())
        },
        ..list!(
            Server,
            OfSection,
            "allow_origin",
            "ORIGIN",
            server.config.allowed_origins,
            "Origins of web pages that may call, beside loopback ones, like https://app.example.com"
        )
    },
    whole!(
        Server, OfSection, "max_input_chars", TEXT "N", server.config.max_input_chars,
        "The most characters of one request or utterance"
    ),
    whole!(
        Server, OfSection, "max_requests", PERMITS "N", server.config.max_requests,
        "The most requests at once; more are turned away"
    ),
    whole!(
        Server, OfSection, "max_sessions", PERMITS "N", server.config.max_sessions,
        "The most WebSocket sessions at once; more are turned away"
    ),
    whole!(
        Server, Tuning, "max_connections", PERMITS "N", server.config.max_connections,
        "The most connections; more wait"
    ),
    whole!(
        Server, Tuning, "max_body_bytes", BYTES "BYTES", server.config.max_body_bytes,
        "The most bytes of a request's body"
    ),
    whole!(
        Server, OfSection, "max_upload_bytes", UPLOAD "BYTES", server.config.max_upload_bytes,
        "The most bytes of a recording that is sent for transcription"
    ),
    whole!(
        Server, Tuning, "max_header_bytes", HEAD_BYTES "BYTES", server.config.max_header_bytes,
        "The most bytes of a request's head"
    ),
    whole!(
        Server, Tuning, "max_frame_bytes", BYTES "BYTES", server.config.max_frame_bytes,
        "The most bytes of one WebSocket message"
    ),
    whole!(
        Server, Tuning, "max_session_chars", ANY_COUNT "N", server.config.max_session_chars,
        "The most characters of text over a WebSocket session"
    ),
    seconds!(
        Server,
        Tuning,
        "header_timeout_s",
        server.config.header_timeout,
        "How long a request's head may take, and an idle connection is kept"
    ),
    seconds!(
        Server,
        Tuning,
        "body_timeout_s",
        server.config.body_timeout,
        "How long a request's body may take"
    ),
    seconds!(
        Server,
        Tuning,
        "upload_timeout_s",
        server.config.upload_timeout,
        "How long a request that brings a recording may take to arrive"
    ),
    seconds!(
        Server,
        Tuning,
        "first_audio_timeout_s",
        server.config.first_audio_timeout,
        "How long a request may wait for its first audio"
    ),
    seconds!(
        Server,
        Tuning,
        "send_timeout_s",
        server.config.send_timeout,
        "How long a peer may leave what was sent to it unread"
    ),
    seconds!(
        Server,
        Tuning,
        "idle_timeout_s",
        server.config.idle_timeout,
        "How long a WebSocket session may be silent while nothing is spoken"
    ),
    seconds!(
        Server,
        Tuning,
        "ping_interval_s",
        server.config.ping_interval,
        "Time between two pings of a WebSocket session"
    ),
    seconds!(
        Server,
        Tuning,
        "drain_timeout_s",
        server.config.drain_timeout,
        "How long requests may go on after a shutdown was asked for"
    ),
];
