//! A cgroup for this process: version 1 (`memory.limit_in_bytes`) or 2 (`memory.max`).
//!
//! The group is created below the current group of this process, so the limits of that group still
//! hold. The page cache of the process counts in it. Version 2 requires that the parent group
//! delegates the memory controller, and allows processes in leaf groups only. That works if this
//! process is alone in its group (`systemd-run --scope`), or if an administrator has delegated the
//! controller.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Prefix of the names of this program's groups; process id and a number follow.
const PREFIX: &str = "retrie-memory-";
/// Number of groups that this process has created.
static MADE: AtomicU32 = AtomicU32::new(0);
const PROCS: &str = "cgroup.procs";
const CONTROL: &str = "cgroup.subtree_control";

/// A cgroup that this process is in. Dropping it moves the process back.
#[derive(Debug)]
pub(super) struct MemoryCgroup {
    home: PathBuf,
    folder: PathBuf,
    /// Whether the memory controller was delegated for it (version 2).
    passed_on: bool,
}

/// The two cgroup interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupVersion {
    One,
    Two,
}

impl MemoryCgroup {
    /// Creates a group with a limit in bytes, and moves this process into it.
    pub(super) fn enter(limit: u64) -> io::Result<Self> {
        let (version, home) = own_group()?;
        remove_abandoned(&home);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = home.join(format!("{PREFIX}{}-{number}", process::id()));
        fs::create_dir(&folder).map_err(|e| named(&folder, &e))?;
        // From here on, dropping `group` reverts each step.
        let mut group = Self { home, folder, passed_on: false };
        match version {
            CgroupVersion::One => {
                write(&group.folder.join("memory.limit_in_bytes"), limit)?;
                group.join()?;
            }
            CgroupVersion::Two => {
                group.join()?;
                let max = group.folder.join("memory.max");
                if !max.exists() {
                    write(&group.home.join(CONTROL), "+memory")?;
                    group.passed_on = true;
                }
                write(&max, limit)?;
                // Otherwise memory beyond the limit would go to swap.
                let _ = write(&group.folder.join("memory.swap.max"), 0);
            }
        }
        Ok(group)
    }

    fn join(&self) -> io::Result<()> {
        write(&self.folder.join(PROCS), process::id())
    }

    /// Moves this process back. In version 2 a group that delegates a controller may not hold
    /// processes, so the delegation is reverted first.
    fn leave(&self) -> io::Result<()> {
        if self.passed_on {
            write(&self.home.join(CONTROL), "-memory")?;
        }
        write(&self.home.join(PROCS), process::id())
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            tracing::warn!(%error, "this process stays under its memory limit");
            return;
        }
        // The move takes effect with a delay. The next command removes a group that stays.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Removes the groups of killed processes. They are empty, and only empty groups can be removed.
fn remove_abandoned(home: &Path) {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let _ = fs::remove_dir(entry.path());
    }
}

/// The folder of this process's group in the hierarchy of the memory controller.
fn own_group() -> io::Result<(CgroupVersion, PathBuf)> {
    let groups = fs::read_to_string("/proc/self/cgroup").map_err(|e| {
        io::Error::other(format!("/proc/self/cgroup: {e}; cgroups exist on Linux only"))
    })?;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    find_group(&groups, &mounts)
        .filter(|(_, folder)| folder.is_dir())
        .ok_or_else(|| io::Error::other("no cgroup hierarchy that bounds memory is mounted"))
}

/// Like [`own_group`], from the text of `/proc/self/cgroup` and `/proc/self/mounts`: version 1 if
/// its memory controller is mounted, otherwise version 2.
fn find_group(groups: &str, mounts: &str) -> Option<(CgroupVersion, PathBuf)> {
    let group = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let path = parts.next()?;
            controllers.split(',').any(|name| name == controller).then_some(path)
        })
    };
    let mount = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            let [_, folder, found, options, ..] = fields[..] else { return None };
            let has_option = option.is_none_or(|option| options.split(',').any(|o| o == option));
            (found == kind && has_option).then_some(Path::new(folder))
        })
    };
    let below = |mount: &Path, group: &str| mount.join(group.trim_start_matches('/'));
    let one = group("memory").zip(mount("cgroup", Some("memory")));
    let two = || group("").zip(mount("cgroup2", None));
    let one = one.map(|(group, mount)| (CgroupVersion::One, below(mount, group)));
    one.or_else(|| two().map(|(group, mount)| (CgroupVersion::Two, below(mount, group))))
}

fn write(path: &Path, value: impl std::fmt::Display) -> io::Result<()> {
    fs::write(path, value.to_string()).map_err(|e| named(path, &e))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses plain folders, in which every write succeeds.
    #[test]
    fn controller_that_was_passed_on_is_taken_back() {
        for passed_on in [false, true] {
            let home = tempfile::tempdir().unwrap();
            let folder = home.path().join("group");
            fs::create_dir(&folder).unwrap();
            drop(MemoryCgroup { home: home.path().into(), folder: folder.clone(), passed_on });
            let read = |name| fs::read_to_string(home.path().join(name)).ok();
            assert_eq!(read(CONTROL), passed_on.then(|| "-memory".into()));
            assert_eq!(read(PROCS), Some(process::id().to_string()));
            assert!(!folder.exists());
        }
    }

    #[test]
    fn own_group_is_found_in_both_versions() {
        let one = "9:name=systemd:/\n4:memory:/user/1\n2:cpu,cpuacct:/\n0::/\n";
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let found = find_group(one, mounts);
        assert_eq!(found, Some((CgroupVersion::One, "/sys/fs/cgroup/memory/user/1".into())));
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = find_group("0::/user.slice/run.scope\n", mounts);
        let folder = "/sys/fs/cgroup/user.slice/run.scope".into();
        assert_eq!(found, Some((CgroupVersion::Two, folder)));
        assert_eq!(find_group("0::/\n", "proc /proc proc rw 0 0\n"), None);
    }
}
