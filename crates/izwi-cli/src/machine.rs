//! Limits of the machine and of the process: memory and open files. Knows no setting.

use std::sync::OnceLock;

use anyhow::Result;
pub(crate) use izwi_core::engine::executor::cpu_memory as memory_bytes;
use sysinfo::CpuRefreshKind;

use crate::failure;

/// Share of the memory that loaded models may take by default, in percent.
const MODELS_PERCENT: u64 = 70;
/// Memory of a server without models that computes a few requests: 100 MiB and 50 for each of them.
const OWN_MEMORY: u64 = 256 << 20;
/// Address space that a server takes without models: stacks and arenas that are reserved and hardly used.
const OWN_ADDRESS_SPACE: u64 = 640 << 20;
/// The least address space of a server with a small model. An allocation that fails ends the process.
const MIN_ADDRESS_SPACE: u64 = 1 << 30;

/// Name of the processor, as the system tells it.
pub(crate) fn processor() -> Option<String> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    let name = system.cpus().first()?.brand().trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Default of the memory budget of all loaded models in MiB: a share of the memory of the machine, of its cgroup, or of the
/// address space that is left of a limit (`ulimit -v`), whichever is least, so that the process and its requests keep some. 0
/// if unknown.
pub(crate) fn default_memory_budget_mib() -> u64 {
    static BUDGET: OnceLock<u64> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        let total = memory_bytes().map(|(total, _)| total);
        let own = total.map(|total| total.saturating_sub(OWN_MEMORY));
        let space = address_space_limit().map(|limit| limit.saturating_sub(OWN_ADDRESS_SPACE));
        let share = total.into_iter().chain(space).min().map(|bytes| bytes / 100 * MODELS_PERCENT);
        // 0 stands for no limit.
        share.into_iter().chain(own).min().map_or(0, |bytes| (bytes >> 20).max(1))
    })
}

/// Refuses a limit of the address space with which a server would be ended in the middle of a request.
///
/// # Errors
/// The limit is too low.
pub(crate) fn check_address_space() -> Result<()> {
    match address_space_limit() {
        Some(limit) if limit < MIN_ADDRESS_SPACE => Err(failure::with_help(
            format!(
                "the process may use {} MiB of address space; a server needs at least {} MiB",
                limit >> 20,
                MIN_ADDRESS_SPACE >> 20
            ),
            "raise the limit with `ulimit -v`; to bound memory, use MemoryMax= of systemd or a container",
        )),
        _ => Ok(()),
    }
}

/// Bytes of address space that the process may use; `None` without a limit.
#[cfg(unix)]
fn address_space_limit() -> Option<u64> {
    let (soft, _) = rlimit::Resource::AS.get().ok()?;
    Some(soft).filter(|soft| *soft != rlimit::INFINITY)
}

#[cfg(not(unix))]
fn address_space_limit() -> Option<u64> {
    None
}

/// Raises the number of files and sockets that the process may open to `wanted`, as far as the system allows. Returns the
/// number; `None` if it is unknown.
pub(crate) fn raise_open_files(wanted: u64) -> Option<u64> {
    match rlimit::increase_nofile_limit(wanted) {
        Ok(limit) => Some(limit),
        Err(error) => {
            tracing::warn!(%error, wanted, "the limit of open files could not be raised");
            open_files_limit()
        }
    }
}

#[cfg(unix)]
fn open_files_limit() -> Option<u64> {
    rlimit::Resource::NOFILE.get().ok().map(|(soft, _)| soft)
}

#[cfg(not(unix))]
fn open_files_limit() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_budget_is_a_share_of_the_memory() {
        let (total, _) = memory_bytes().unwrap();
        let budget = default_memory_budget_mib() << 20;
        assert!(budget > 0 && budget <= total / 10 * 7, "{budget} of {total}");
    }

    #[cfg(unix)]
    #[test]
    fn the_limit_of_open_files_is_raised_and_never_lowered() {
        let (soft, hard) = rlimit::Resource::NOFILE.get().unwrap();
        let wanted = hard.min(soft + 1);
        assert_eq!(raise_open_files(wanted), Some(wanted));
        assert_eq!(raise_open_files(1), Some(wanted));
    }
}
