//! Limits of the machine and of the process: memory and open files. Knows no setting.

use std::sync::OnceLock;

/// Share of the memory that loaded models may take by default, in percent.
const MODELS_PERCENT: u64 = 70;

/// Total and available memory in bytes, within the limits of the container.
pub(crate) fn memory_bytes() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let (total, available) = (system.total_memory(), system.available_memory());
    Some(match system.cgroup_limits() {
        Some(limits) => (total.min(limits.total_memory), available.min(limits.free_memory)),
        None => (total, available),
    })
}

/// Default of the memory budget of all loaded models in MiB: a share of the memory of the machine, of its cgroup, or of the
/// address space that the process may use (`ulimit -v`), whichever is least. 0 if unknown.
pub(crate) fn default_memory_budget_mib() -> u64 {
    static BUDGET: OnceLock<u64> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        let total = memory_bytes().map(|(total, _)| total);
        let limit = total.into_iter().chain(address_space_limit()).min().unwrap_or(0);
        (limit >> 20) * MODELS_PERCENT / 100
    })
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
