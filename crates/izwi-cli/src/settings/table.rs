//! The table of settings. A new setting is one row here and nothing elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use izwi_core::engine::SchedulingPolicy;

use super::field::{Kind, Reach, Section, Setting, Value};
use super::ranges::{
    ANY_COUNT, ANY_NUMBER, BATCH, BYTES, CHUNKS, HEAD_BYTES, LOADING, MEBIBYTES, PERMITS, PORT, RATE,
    SECONDS, STATE_MEBIBYTES, TEXT, THREADS, TTL, UPLOAD, WINDOW,
};
use super::rows::{list, row, seconds, switch, text, whole};
use super::values::{LogFormat, check_log_filter};

use Reach::{Everywhere, Section as OfSection, Tuning};
use Section::{Engine, Server, Top};

/// Every setting, in the order of help and documentation.
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
            "Folder of pulled models, saved voices and user manifests",
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
            "Folder of models that the user maintains, one subfolder per name; their hashes are not checked",
        )
    },
    whole!(
        Top, Tuning, "max_voices", ANY_NUMBER "N", voices.count,
        "Maximum number of saved voices; further ones are refused"
    ),
    whole!(
        Top, Tuning, "max_voices_mib", MEBIBYTES "MIB", voices.mib,
        "Maximum size of all saved voices, in MiB; further ones are refused"
    ),
    Setting {
        default_words: Some("info for serve, warn elsewhere"),
        foreign_variable: Some("RUST_LOG"),
        get: |settings| settings.log_level.clone().map_or(Value::Unset, Value::Text),
        set: |settings, value| {
            let text = value.text()?;
            check_log_filter(text)?;
            settings.log_level = Some(text.to_owned());
            Ok(())
        },
        ..row(
            Top,
            Everywhere,
            "log_level",
            Kind::Text,
            "LEVEL",
            "Log level on standard error: error, warn, info, debug, trace, or a filter like izwi_core=debug",
        )
    },
    Setting {
        get: |settings| Value::Text(settings.log_format.label().to_owned()),
        set: |settings, value| {
            settings.log_format = LogFormat::from_label(value.text()?)?;
            Ok(())
        },
        ..row(Top, Everywhere, "log_format", Kind::Choice(&["text", "json"]), "FORMAT", "Format of the log")
    },
    text!(Engine, OfSection, "model", Kind::Text, "NAME", engine.model, "TTS model, as `izwi list` shows it"),
    text!(
        Engine,
        Everywhere,
        "device",
        Kind::Text,
        "DEVICE",
        engine.device,
        "Compute device: auto, cpu, metal, metal:N, cuda or cuda:N"
    ),
    Setting {
        get: |settings| Value::List(settings.engine.devices.iter().map(ToString::to_string).collect()),
        set: |settings, value| {
            let names = value.list()?.iter().flat_map(|item| item.split(',')).map(str::trim);
            settings.engine.devices =
                names.filter(|name| !name.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
            Ok(())
        },
        ..row(
            Engine,
            OfSection,
            "devices",
            Kind::List,
            "NAMES",
            "Devices of a server, in place of device: each has a replica of a model where it has room; separated by commas",
        )
    },
    text!(
        Engine,
        OfSection,
        "dtype",
        Kind::Choice(&["auto", "f32", "bf16", "f16", "q8", "q4"]),
        "TYPE",
        engine.dtype,
        "Type of the weights of large models: auto is q8 on the CPU and Metal, f32 elsewhere; q4 harms small models"
    ),
    switch!(
        Engine,
        Everywhere,
        "weight_cache",
        engine.weight_cache,
        "Whether quantised and packed weights of large models are cached in files next to them, to load faster"
    ),
    Setting {
        default_words: Some("physical cores, at most 8"),
        foreign_variable: Some("RAYON_NUM_THREADS"),
        ..whole!(Engine, Everywhere, "threads", THREADS "N", engine.num_threads, "Compute threads; use no more than the free cores")
    },
    whole!(Engine, Tuning, "max_batch_size", BATCH "N", engine.max_batch_size, "Maximum number of sequences in one step"),
    whole!(
        Engine, Tuning, "max_running_requests", ANY_COUNT "N", engine.max_running_requests,
        "Maximum number of admitted sequences; they take turns in the steps"
    ),
    whole!(
        Engine, Tuning, "max_state_mib", STATE_MEBIBYTES "MIB", engine.max_state_mib,
        "Maximum memory of the states of started requests, in MiB; more requests wait"
    ),
    whole!(
        Engine, Tuning, "max_waiting_requests", ANY_COUNT "N", engine.max_waiting_requests,
        "Maximum number of waiting requests; more are refused"
    ),
    switch!(
        Engine,
        Tuning,
        "admission",
        engine.admission,
        "Whether a live stream is accepted only if all live streams are predicted to play without a gap"
    ),
    seconds!(
        Engine, Tuning, "max_first_audio_s" => engine.max_first_audio,
        "Longest predicted time to the first audio of a live stream; one that would wait longer is refused with Retry-After"
    ),
    whole!(
        Engine, Tuning, "max_tokens_per_step", ANY_COUNT "N", engine.max_tokens_per_step,
        "Maximum number of tokens in one step"
    ),
    whole!(
        Engine, Tuning, "max_seq_len", ANY_COUNT "N", engine.max_seq_len,
        "Maximum number of tokens in a sequence, prompt and generated tokens together"
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
            "Order of sequences; deadline orders by the time until the audio of a stream runs out",
        )
    },
    whole!(
        Engine, Tuning, "admission_lookahead", ANY_NUMBER "N", engine.admission_lookahead,
        "Tokens for which an admission leaves KV blocks free, for itself and for each running sequence"
    ),
    whole!(Engine, Tuning, "block_size", ANY_COUNT "N", engine.block_size, "Tokens in a KV block"),
    whole!(Engine, Tuning, "max_blocks", ANY_COUNT "N", engine.max_blocks, "Blocks in the KV pool"),
    switch!(
        Engine,
        Tuning,
        "enable_prefix_caching",
        engine.enable_prefix_caching,
        "Whether equal prompt prefixes share KV blocks"
    ),
    whole!(
        Engine, Tuning, "kv_swap_mib", MEBIBYTES "MIB", engine.kv_swap_mib,
        "Maximum MiB of files for each model's KV blocks of conversations and of prompts that came again; 0 for none"
    ),
    switch!(
        Engine,
        Tuning,
        "kv_swap_private",
        engine.kv_swap_private,
        "Whether the key of these files is in memory alone; false keeps it in a file, so that they outlive a restart"
    ),
    switch!(
        Engine,
        Tuning,
        "enable_chunked_prefill",
        engine.enable_chunked_prefill,
        "Whether the prefill of long prompts is split over several steps"
    ),
    whole!(
        Engine, Tuning, "chunked_prefill_threshold", ANY_COUNT "N", engine.chunked_prefill_threshold,
        "Number of tokens above which a prompt is split; also the maximum size of its chunks"
    ),
    switch!(
        Engine,
        Tuning,
        "enable_preemption",
        engine.enable_preemption,
        "Whether running sequences are preempted for more urgent ones"
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
        "Samples in a streamed chunk; 4800 samples are 200 ms at 24 kHz"
    ),
    whole!(
        Engine, Tuning, "stream_buffer_chunks", CHUNKS "N", engine.stream_buffer_chunks,
        "Number of buffered chunks for a slow client before its sequence is paused"
    ),
    seconds!(
        Engine, Tuning, "slow_client_timeout_s" => engine.slow_client_timeout,
        "Time by which a client's reading may fall behind real time before its request is aborted; a day by default in commands other than serve"
    ),
    seconds!(
        Engine, Tuning, "text_timeout_s" => engine.text_timeout,
        "Time that a request waits for more text or audio of its client before it ends, where it is computed as it arrives"
    ),
    seconds!(
        Engine, Tuning, "max_reference_s" => engine.max_reference_duration,
        "Maximum duration of a reference recording for voice cloning"
    ),
    seconds!(
        Engine, Tuning, "max_turn_s" => engine.max_turn_duration,
        "Maximum duration of a recorded turn of a conversation"
    ),
    list!(
        Engine,
        Tuning,
        "keywords",
        "WORDS",
        engine.keywords,
        "Names and terms that are likely in every recording, besides the keywords of a request; models that take none ignore them"
    ),
    seconds!(
        Engine, Tuning, "max_audio_s" => engine.max_audio_duration,
        "Maximum duration of a recording to transcribe; it also bounds the work of decoding one"
    ),
    whole!(
        Engine, Tuning, "max_conversation_turns", ANY_COUNT "N", engine.max_conversation_turns,
        "Maximum number of turns in the context of a conversation; beyond it the older half is dropped"
    ),
    Setting {
        set: |settings, value| {
            let host = value.text()?;
            if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_graphic()) {
                let host = izwi_types::excerpt(host);
                return Err(format!(
                    "'{host}' is no address or name of this machine like 127.0.0.1 or localhost"
                ));
            }
            settings.server.host = host.to_owned();
            Ok(())
        },
        ..text!(Server, OfSection, "host", Kind::Text, "ADDRESS", server.host, "Address to listen on")
    },
    whole!(Server, OfSection, "port", PORT "PORT", server.port, "Port to listen on; 0 selects a free one"),
    Setting {
        get: |settings| settings.server.config.api_key.clone().map_or(Value::Unset, Value::Secret),
        set: |settings, value| {
            let key = value.text()?;
            izwi_server::check_key(key).map_err(|error| error.to_string())?;
            settings.server.config.api_key = Some(key.to_owned());
            Ok(())
        },
        ..row(
            Server,
            OfSection,
            "api_key",
            Kind::Secret,
            "KEY",
            "API key that clients must send, at least 16 characters; other users of this machine can read flags, so prefer the variable",
        )
    },
    switch!(
        Server,
        OfSection,
        "insecure",
        server.insecure,
        "Whether an address that other machines can reach may be bound without a key"
    ),
    switch!(
        Server,
        OfSection,
        "allow_pull",
        server.config.allow_pull,
        "Whether clients may have models pulled and deleted; without it models are installed with `izwi pull` alone"
    ),
    switch!(
        Server,
        OfSection,
        "access_log",
        server.config.access_log,
        "Whether each request and session writes a line to the log at its end: sizes, times and names, never text, audio or the key"
    ),
    text!(
        Server,
        OfSection,
        "wyoming",
        Kind::Text,
        "ADDRESS:PORT",
        server.wyoming,
        "Address and port of the Wyoming protocol for Home Assistant, like 127.0.0.1:10200, or none; it has no key, so other addresses need wyoming_open"
    ),
    switch!(
        Server,
        OfSection,
        "wyoming_open",
        server.wyoming_open,
        "Whether the Wyoming port may be bound to an address that other machines can reach: it has no key, so that all of them may use it; the HTTP port stays as it is"
    ),
    switch!(
        Server,
        OfSection,
        "wyoming_zeroconf",
        server.wyoming_zeroconf,
        "Whether the Wyoming port is announced by multicast DNS (zeroconf), so that Home Assistant finds it"
    ),
    switch!(
        Server,
        OfSection,
        "saved_speakers",
        server.saved_speakers,
        "Whether transcripts with speakers tell those that `izwi speakers add` saved by their names; a request can leave it"
    ),
    text!(
        Server,
        OfSection,
        "asr_model",
        Kind::Text,
        "NAME",
        server.asr_model,
        "Default ASR model, as `izwi list` shows it; none for a server without one"
    ),
    list!(
        Server,
        OfSection,
        "models",
        "NAMES",
        server.models,
        "Models to install and offer in addition to the default ones, separated by commas; installed models are always offered"
    ),
    whole!(
        Server, OfSection, "model_ttl_s", TTL "SECONDS", server.model_ttl_s,
        "Time after which an unused model that is not a default one is unloaded; 0 for never"
    ),
    whole!(
        Server, OfSection, "default_model_ttl_s", TTL "SECONDS", server.default_model_ttl_s,
        "Time after which an unused default model is unloaded, until the next request loads it again; 0 for never"
    ),
    whole!(
        Server, OfSection, "exit_when_idle_s", TTL "SECONDS", server.exit_when_idle_s,
        "Time without a connection after which a server that was started by socket activation ends; 0 for never"
    ),
    Setting {
        default_words: Some("70 % of the memory of the machine or its container"),
        ..whole!(Server, OfSection, "memory_budget_mib", MEBIBYTES "MIB", server.memory_budget_mib, "Memory limit of all loaded models and the recordings of requests and sessions together; unused models are unloaded to stay below it; 0 for no limit")
    },
    whole!(
        Server, Tuning, "load_timeout_s", LOADING "SECONDS", server.load_timeout_s,
        "Time that a request waits for its model to load"
    ),
    Setting {
        set: |settings, value| {
            let hosts = value.list()?;
            let check =
                |host: &String| izwi_server::check_allowed_host(host).map_err(|error| error.to_string());
            hosts.iter().try_for_each(check)?;
            settings.server.config.allowed_hosts = hosts.to_vec();
            Ok(())
        },
        ..list!(
            Server,
            OfSection,
            "allow_host",
            "HOST",
            server.config.allowed_hosts,
            "Accepted Host names in addition to loopback names and the bound address"
        )
    },
    Setting {
        get: |settings| settings.server.config.instance.clone().map_or(Value::Unset, Value::Text),
        set: |settings, value| {
            let name = value.text()?;
            izwi_server::check_instance(name).map_err(|error| error.to_string())?;
            settings.server.config.instance = Some(name.to_owned()).filter(|name| !name.is_empty());
            Ok(())
        },
        ..row(
            Server,
            OfSection,
            "instance",
            Kind::Text,
            "NAME",
            "Name of this server among replicas behind a balancer; clients name it to continue a session here, also while it drains",
        )
    },
    Setting {
        set: |settings, value| {
            let origins = value.list()?;
            let check = |origin: &String| {
                izwi_server::check_allowed_origin(origin).map_err(|error| error.to_string())
            };
            origins.iter().try_for_each(check)?;
            settings.server.config.allowed_origins = origins.to_vec();
            Ok(())
        },
        ..list!(
            Server,
            OfSection,
            "allow_origin",
            "ORIGIN",
            server.config.allowed_origins,
            "Accepted origins of web pages in addition to loopback ones, like https://app.example.com"
        )
    },
    whole!(
        Server, OfSection, "max_jobs", ANY_NUMBER "N", server.config.max_jobs,
        "Maximum number of jobs, finished ones included; 0 takes none"
    ),
    whole!(
        Server, OfSection, "max_jobs_bytes", ANY_NUMBER "BYTES", server.config.max_jobs_bytes,
        "Maximum size of all jobs with their uploads and results"
    ),
    whole!(
        Server, OfSection, "max_job_bytes", ANY_NUMBER "BYTES", server.config.max_job_bytes,
        "Maximum size of the recording or the book of a job"
    ),
    whole!(
        Server, OfSection, "jobs_keep_days", ANY_NUMBER "DAYS", server.config.jobs_keep_days,
        "Days that finished jobs are kept; 0 keeps them until they are deleted"
    ),
    whole!(
        Server, OfSection, "max_input_chars", TEXT "N", server.config.max_input_chars,
        "Maximum number of characters in a request or an utterance"
    ),
    whole!(
        Server, OfSection, "max_requests", PERMITS "N", server.config.max_requests,
        "Maximum number of concurrent requests; more are refused"
    ),
    whole!(
        Server, OfSection, "max_sessions", PERMITS "N", server.config.max_sessions,
        "Maximum number of concurrent sessions, WebSocket and Wyoming; more are refused"
    ),
    whole!(
        Server, Tuning, "max_connections", PERMITS "N", server.config.max_connections,
        "Maximum number of connections, as far as the limit of open files allows; a new one takes the place of one that waits for a request"
    ),
    whole!(
        Server, Tuning, "max_connections_per_peer", PERMITS "N", server.config.max_connections_per_peer,
        "Maximum number of connections of one address, or of one /64 of IPv6; four times as many of this machine"
    ),
    whole!(
        Server, Tuning, "max_body_bytes", BYTES "BYTES", server.config.max_body_bytes,
        "Maximum size of a request body"
    ),
    whole!(
        Server, OfSection, "max_upload_bytes", UPLOAD "BYTES", server.config.max_upload_bytes,
        "Maximum size of an uploaded recording"
    ),
    whole!(
        Server, Tuning, "max_header_bytes", HEAD_BYTES "BYTES", server.config.max_header_bytes,
        "Maximum size of a request head"
    ),
    whole!(
        Server, Tuning, "max_frame_bytes", BYTES "BYTES", server.config.max_frame_bytes,
        "Maximum size of a WebSocket message or a Wyoming event"
    ),
    whole!(
        Server, Tuning, "max_session_chars", ANY_COUNT "N", server.config.max_session_chars,
        "Maximum number of characters of text in a WebSocket session, or in a stream of text of Wyoming"
    ),
    seconds!(
        Server, Tuning, "header_timeout_s" => server.config.header_timeout,
        "Time limit for the head of a request"
    ),
    seconds!(
        Server, Tuning, "keep_alive_timeout_s" => server.config.keep_alive_timeout,
        "Time that a connection without a request is kept"
    ),
    whole!(
        Server, Tuning, "min_body_rate", RATE "BYTES", server.config.min_body_rate,
        "Minimum bytes per second of a request body, apart from pauses of at most 10 s; 0 for no limit"
    ),
    seconds!(
        Server, Tuning, "body_timeout_s" => server.config.body_timeout,
        "Time limit for the body of a request"
    ),
    seconds!(
        Server, Tuning, "upload_timeout_s" => server.config.upload_timeout,
        "Time limit for the body of a request with a recording"
    ),
    seconds!(
        Server, Tuning, "first_audio_timeout_s" => server.config.first_audio_timeout,
        "Time limit until the first audio of a request"
    ),
    seconds!(
        Server, Tuning, "send_timeout_s" => server.config.send_timeout,
        "Time limit for a client to read sent data"
    ),
    seconds!(
        Server, Tuning, "idle_timeout_s" => server.config.idle_timeout,
        "Time limit for a session without input or output"
    ),
    Setting {
        kind: WINDOW,
        ..seconds!(
            Server, OfSection, "resume_window_s" => server.config.resume_window,
            "Time that a WebSocket session waits for its client after the connection was lost, and length of the audio kept for it; 0 ends it at once"
        )
    },
    seconds!(
        Server, Tuning, "ping_interval_s" => server.config.ping_interval,
        "Interval of pings in a WebSocket session"
    ),
    seconds!(
        Server, Tuning, "drain_timeout_s" => server.config.drain_timeout,
        "Time limit for open requests at shutdown"
    ),
];
