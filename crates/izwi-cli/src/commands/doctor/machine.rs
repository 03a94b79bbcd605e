//! Findings about the machine: build, processor, memory, device, disk, port, and programs beside Izwi.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cli;
use crate::output;
use crate::player::{self, Player};
use crate::settings::{Resolved, ServerSettings};
use izwi_core::engine::executor::probe_device;

use super::Finding;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_ANSWER_BYTES: u64 = 4_096;
/// Below this a pull of a small model and its conversion may fill the disk.
const LITTLE_DISK_BYTES: u64 = 2_000_000_000;

/// Which program this is.
pub(super) fn build() -> Finding {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let detail = format!("izwi {}, {profile}, {system}", *cli::VERSION);
    if cfg!(debug_assertions) {
        Finding::warning("build", detail, "this build is slow; build with --release for use")
    } else {
        Finding::ok("build", detail)
    }
}

/// Everything about the machine.
pub(super) fn findings(resolved: &Resolved) -> Vec<Finding> {
    let settings = &resolved.settings;
    vec![
        cores(settings.engine.num_threads),
        processor(),
        memory(),
        device(resolved),
        store(&settings.home),
        port(&settings.server),
        python(),
        audio_player(),
    ]
}

fn cores(threads: usize) -> Finding {
    let (physical, logical) = (num_cpus::get_physical(), num_cpus::get());
    let load = sysinfo::System::load_average().map_or(0.0, |load| load.one);
    let free = (logical as f64 - load).max(0.0);
    let detail =
        format!("{physical} physical, {logical} logical, about {free:.1} free; {threads} compute threads");
    if threads > logical {
        let remedy = format!("more threads than cores make every step wait; set --threads {physical}");
        return Finding::warning("cores", detail, remedy);
    }
    // Each other program that computes holds up every step: threads wait for each other.
    if free + 0.5 < threads as f64 {
        return Finding::warning("cores", detail, "other programs compute; end them, or lower --threads");
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
            "without avx2 or neon speech is slow; use a newer machine or a GPU build",
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
    match memory_bytes() {
        Some((total, available)) => Finding::ok(
            "memory",
            format!("{} of {} available", output::bytes(available), output::bytes(total)),
        ),
        None => Finding::ok("memory", "the system does not tell"),
    }
}

/// Memory in bytes, total and available, within the limits of a container.
pub(super) fn memory_bytes() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let (total, available) = (system.total_memory(), system.available_memory());
    Some(match system.cgroup_limits() {
        Some(limits) => (total.min(limits.total_memory), available.min(limits.free_memory)),
        None => (total, available),
    })
}

fn device(resolved: &Resolved) -> Finding {
    let choice = resolved.settings.engine.device;
    let built_in = cli::backends().join(", ");
    match probe_device(choice) {
        Ok(_) => Finding::ok("device", format!("{choice} can be opened; built in: {built_in}")),
        Err(error) => Finding::broken("device", error.to_string(), "use --device auto or --device cpu"),
    }
}

/// Whether the store's folder, or the nearest one above it that is there, takes files and has room.
fn store(home: &Path) -> Finding {
    let shown = home.display();
    let there = home.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    if let Err(error) = tempfile::tempfile_in(there) {
        let remedy =
            "only installed models can be used; change the folder's owner, or set IZWI_HOME to another";
        return Finding::warning("store", format!("{shown} takes no files: {error}"), remedy);
    }
    match fs4::available_space(there) {
        Ok(free) if free < LITTLE_DISK_BYTES => {
            let detail = format!("{shown}, only {} free", output::bytes(free));
            Finding::warning("store", detail, "free some space, or set IZWI_HOME to another disk")
        }
        Ok(free) => Finding::ok("store", format!("{shown}, {} free", output::bytes(free))),
        Err(error) => Finding::ok("store", format!("{shown}, free space unknown: {error}")),
    }
}

fn port(server: &ServerSettings) -> Finding {
    let place = format!("{}:{}", server.host, server.port);
    let addresses = match (server.host.as_str(), server.port).to_socket_addrs() {
        Ok(addresses) => addresses.collect::<Vec<SocketAddr>>(),
        Err(error) => {
            return Finding::warning("port", format!("{place} means no address: {error}"), "correct --host");
        }
    };
    match TcpListener::bind(addresses.as_slice()) {
        Ok(_) => Finding::ok("port", format!("{place} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            match addresses.first().and_then(|address| who_answers(*address)) {
                Some(answer) if answer.contains("\"izwi\"") => {
                    Finding::ok("port", format!("izwi answers at {place}"))
                }
                Some(_) => another(&place, "another HTTP server answers there"),
                None => another(&place, "and whoever has it does not speak HTTP"),
            }
        }
        Err(error) => {
            Finding::warning("port", format!("{place} cannot be bound: {error}"), "correct --host and --port")
        }
    }
}

fn another(place: &str, what: &str) -> Finding {
    Finding::warning("port", format!("{place} is in use, {what}"), "`izwi serve` needs another: use --port")
}

/// What the process at a port answers when it is asked for its version.
fn who_answers(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    // A peer that stops half-way has still answered.
    let _ = stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.starts_with("HTTP/").then_some(text)
}

fn python() -> Finding {
    let remedy = "only models that come as packages need it; install python3 and pip (Debian: python3-pip)";
    let search = std::env::var_os("PATH").unwrap_or_default();
    let Some(python) = ["python3", "python"].iter().find_map(|name| player::executable(name, &search)) else {
        return Finding::warning("python", "python3 was not found", remedy);
    };
    let pip = Command::new(&python).args(["-m", "pip", "--version"]).stdin(Stdio::null()).output();
    match pip {
        Ok(pip) if pip.status.success() => {
            let version = String::from_utf8_lossy(&pip.stdout);
            let words: Vec<&str> = version.split_whitespace().take(2).collect();
            Finding::ok("python", format!("{} with {}", python.display(), words.join(" ")))
        }
        _ => Finding::warning("python", format!("{} has no pip", python.display()), remedy),
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
    fn a_port_in_use_is_told_from_a_free_one() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port_in_use = holder.local_addr().unwrap().port();
        let server = ServerSettings { port: port_in_use, ..ServerSettings::default() };
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = holder.accept().unwrap();
            let mut asked = [0; 64];
            let _ = stream.read(&mut asked).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"name\":\"izwi\"}").unwrap();
        });
        let finding = port(&server);
        answering.join().unwrap();
        assert!(finding.detail.contains("izwi answers"), "{finding:?}");
        let free = port(&ServerSettings { port: 0, ..ServerSettings::default() });
        assert!(free.detail.contains("is free"), "{free:?}");
    }

    #[test]
    fn more_threads_than_cores_are_named() {
        let finding = cores(10_000);
        assert!(finding.remedy.unwrap().contains("--threads"));
    }
}
