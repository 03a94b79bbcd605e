//! Checks of the machine: build, system, processor, memory, device, disk, port, Python and audio player.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use izwi_core::engine::executor::{Gpu, metal_gpu, probe_device};
use izwi_types::DeviceChoice;

use crate::build_info;
use crate::machine;
use crate::output;
use crate::settings::{Resolved, ServerSettings};
use crate::sound::Player;

use super::finding::Finding;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_RESPONSE_BYTES: u64 = 4_096;
/// A pull of a small model and its conversion may need this much.
const LOW_DISK_BYTES: u64 = 2_000_000_000;

/// Version, profile and platform.
pub(super) fn build() -> Finding {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let detail = format!("izwi {}, {profile}, {system}", *build_info::VERSION);
    if cfg!(debug_assertions) {
        Finding::warning("build", detail, "debug builds are slow; build with --release")
    } else {
        Finding::ok("build", detail)
    }
}

/// All checks of the machine.
pub(super) fn findings(resolved: &Resolved) -> Vec<Finding> {
    let settings = &resolved.settings;
    let mut findings = vec![cores(settings.engine.num_threads), processor(), memory(), device(resolved)];
    findings.extend(macos());
    findings.extend(gpu());
    findings.extend([store(&settings.home), port(&settings.server), python(), audio_player()]);
    findings
}

fn cores(threads: usize) -> Finding {
    let (physical, logical) = (num_cpus::get_physical(), num_cpus::get());
    let load = sysinfo::System::load_average().map_or(0.0, |load| load.one);
    let free = (logical as f64 - load).max(0.0);
    let detail =
        format!("{physical} physical, {logical} logical, about {free:.1} free; {threads} compute threads");
    if threads > logical {
        let remedy = format!("more threads than cores slow down every step; set --threads {physical}");
        return Finding::warning("cores", detail, remedy);
    }
    // The threads wait for each other, so that one busy core slows down every step.
    if free + 0.5 < threads as f64 {
        return Finding::warning(
            "cores",
            detail,
            "other programs use the cores; stop them, or lower --threads",
        );
    }
    Finding::ok("cores", detail)
}

fn processor() -> Finding {
    let (features, fast): (Vec<&str>, bool) = processor_features();
    let detail = if features.is_empty() { "no vector features".to_owned() } else { features.join(" ") };
    if fast {
        Finding::ok("processor", detail)
    } else {
        Finding::warning(
            "processor",
            detail,
            "synthesis without AVX2 or NEON is slow; use a newer machine or a GPU build",
        )
    }
}

#[cfg(target_arch = "x86_64")]
fn processor_features() -> (Vec<&'static str>, bool) {
    use std::is_x86_feature_detected as has;
    let all = [
        (has!("avx2"), "avx2"),
        (has!("fma"), "fma"),
        (has!("avx512f"), "avx512f"),
        (has!("avx512vnni"), "avx512vnni"),
        (has!("avx512bf16"), "avx512bf16"),
    ];
    (all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect(), has!("avx2") && has!("fma"))
}

#[cfg(target_arch = "aarch64")]
fn processor_features() -> (Vec<&'static str>, bool) {
    use std::arch::is_aarch64_feature_detected as has;
    let all = [
        (has!("neon"), "neon"),
        (has!("dotprod"), "dotprod"),
        (has!("i8mm"), "i8mm"),
        (has!("bf16"), "bf16"),
    ];
    (all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect(), has!("neon"))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn processor_features() -> (Vec<&'static str>, bool) {
    (Vec::new(), false)
}

fn memory() -> Finding {
    match machine::memory_bytes() {
        Some((total, available)) => Finding::ok(
            "memory",
            format!("{} of {} available", output::format_bytes(available), output::format_bytes(total)),
        ),
        None => Finding::ok("memory", "unknown"),
    }
}

fn device(resolved: &Resolved) -> Finding {
    let choice = resolved.settings.engine.device;
    let built_in = build_info::backends().join(", ");
    match probe_device(choice) {
        Ok(_) => Finding::ok("device", format!("{choice} can be opened; built in: {built_in}")),
        Err(error) => Finding::broken("device", error.to_string(), "use --device auto or --device cpu"),
    }
}

/// Version of macOS; nothing elsewhere.
fn macos() -> Option<Finding> {
    let version = || sysinfo::System::long_os_version().unwrap_or_else(|_| "version unknown".to_owned());
    cfg!(target_os = "macos").then(|| Finding::ok("system", version()))
}

/// The Metal GPU, or why a Mac has none to use; nothing elsewhere.
fn gpu() -> Option<Finding> {
    let gpu = metal_gpu();
    if gpu.is_none() && !cfg!(target_os = "macos") {
        return None;
    }
    let fault = probe_device(DeviceChoice::Metal(0)).err();
    Some(match (gpu, fault) {
        (Some(gpu), None) => {
            let working_set = output::format_bytes(gpu.working_set_bytes as u64);
            let Gpu { name, architecture, .. } = gpu;
            let detail = format!(
                "{name}, architecture {architecture}, working set up to {working_set}; computes what the CPU does"
            );
            Finding::ok("gpu", detail)
        }
        (gpu, fault) => {
            let name = gpu.map_or_else(String::new, |gpu| format!("{}: ", gpu.name));
            let fault = fault.map_or_else(|| "Metal cannot be used".to_owned(), |fault| fault.to_string());
            let remedy = "models run on the CPU until Metal can be used";
            Finding::warning("gpu", format!("{name}{fault}"), remedy)
        }
    })
}

/// Whether the store's folder, or its nearest existing parent, is writable and has free space.
fn store(home: &Path) -> Finding {
    let shown = home.display();
    let existing = home.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    if let Err(error) = tempfile::tempfile_in(existing) {
        let remedy = "no model can be pulled; change the folder's owner, or set IZWI_HOME to another folder";
        return Finding::warning("store", format!("{shown} is not writable: {error}"), remedy);
    }
    match fs4::available_space(existing) {
        Ok(free) if free < LOW_DISK_BYTES => {
            let detail = format!("{shown}, only {} free", output::format_bytes(free));
            Finding::warning("store", detail, "free some space, or set IZWI_HOME to a folder on another disk")
        }
        Ok(free) => Finding::ok("store", format!("{shown}, {} free", output::format_bytes(free))),
        Err(error) => Finding::ok("store", format!("{shown}, free space unknown: {error}")),
    }
}

fn port(server: &ServerSettings) -> Finding {
    let place = format!("{}:{}", server.host, server.port);
    let addresses = match (server.host.as_str(), server.port).to_socket_addrs() {
        Ok(addresses) => addresses.collect::<Vec<SocketAddr>>(),
        Err(error) => {
            return Finding::warning("port", format!("{place} does not resolve: {error}"), "correct --host");
        }
    };
    match TcpListener::bind(addresses.as_slice()) {
        Ok(_) => Finding::ok("port", format!("{place} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            match addresses.first().and_then(|address| version_response(*address)) {
                Some(response) if response.contains("\"izwi\"") => {
                    Finding::ok("port", format!("izwi answers at {place}"))
                }
                Some(_) => in_use(&place, "by another HTTP server"),
                None => in_use(&place, "by a program that does not speak HTTP"),
            }
        }
        Err(error) => {
            Finding::warning("port", format!("{place} cannot be bound: {error}"), "correct --host and --port")
        }
    }
}

fn in_use(place: &str, by: &str) -> Finding {
    Finding::warning("port", format!("{place} is in use {by}"), "choose another port with --port")
}

/// The response to `GET /version`, if the peer speaks HTTP.
fn version_response(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, RESPONSE_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).ok()?;
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut response = Vec::new();
    // An incomplete response still identifies the peer.
    let _ = stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response);
    let text = String::from_utf8_lossy(&response).into_owned();
    text.starts_with("HTTP/").then_some(text)
}

fn python() -> Finding {
    let remedy = "needed only for models from Python packages; install python3 and pip (Debian: python3-pip)";
    match izwi_hub::find_pip(&izwi_hub::Access::from_env()) {
        Ok((python, version)) => {
            let words: Vec<&str> = version.split_whitespace().take(2).collect();
            Finding::ok("python", format!("{} with {}", python.display(), words.join(" ")))
        }
        Err(Some(python)) => Finding::warning("python", format!("{} has no pip", python.display()), remedy),
        Err(None) => Finding::warning("python", "python3 was not found", remedy),
    }
}

fn audio_player() -> Finding {
    match (Player::find(false), Player::find(true)) {
        (Ok(file), Ok(stream)) if file.name() == stream.name() => Finding::ok("player", file.name()),
        (Ok(file), Ok(stream)) => {
            Finding::ok("player", format!("{}; {} for --stream", file.name(), stream.name()))
        }
        (Ok(file), Err(_)) => Finding::ok("player", format!("{}; none for --stream", file.name())),
        (Err(error), _) => {
            let text = crate::failure::render(&error);
            let remedy = text.lines().find_map(|line| line.strip_prefix("help: ")).unwrap_or_default();
            Finding::warning("player", error.to_string(), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_distinguished_from_a_free_one() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port_in_use = holder.local_addr().unwrap().port();
        let server = ServerSettings { port: port_in_use, ..ServerSettings::default() };
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = holder.accept().unwrap();
            let mut request = [0; 64];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"name\":\"izwi\"}").unwrap();
        });
        let finding = port(&server);
        peer.join().unwrap();
        assert!(finding.detail.contains("izwi answers"), "{finding:?}");
        let free = port(&ServerSettings { port: 0, ..ServerSettings::default() });
        assert!(free.detail.contains("is free"), "{free:?}");
    }

    #[test]
    fn more_threads_than_cores_are_a_warning() {
        let finding = cores(10_000);
        assert!(finding.remedy.unwrap().contains("--threads"));
    }
}
