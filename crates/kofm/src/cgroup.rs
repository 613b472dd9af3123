//! A cgroup (version 2) that contains the processes of one command.
//!
//! A process cannot leave its cgroup by `setsid`, by a double fork, or by losing its parent.
//! Writing to `cgroup.kill` kills all members at once, so that a command which forks quickly cannot
//! escape. The cgroup is a child of the caller's own; no controller is enabled in it.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// A cgroup of one command. Dropping it removes the directory if no process is left in it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    /// `cgroup.events`; the kernel reports POLLPRI here when the last process ends.
    events: File,
}

impl Cgroup {
    /// Creates a cgroup below the caller's own. Returns none if the system has no version 2, if the
    /// caller may not create one, if the kernel lacks `cgroup.kill` (Linux before 5.14), or if the
    /// user has set `KOFM_CGROUP=off`.
    pub(crate) fn create(name: &str) -> Option<Self> {
        if std::env::var_os("KOFM_CGROUP").is_some_and(|it| it == "off") {
            return None;
        }
        let path = own()?.join(name);
        fs::create_dir(&path).ok()?;
        let made = Self::open(&path).ok().filter(|it| it.path.join("cgroup.kill").exists());
        // Creating a cgroup does not imply the right to move a process into it.
        let usable = made.filter(Self::accepts_processes);
        if usable.is_none() {
            fs::remove_dir(&path).ok();
        }
        usable
    }

    /// Opens the cgroup at `path`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let events = File::open(path.join("cgroup.events"))?;
        Ok(Self { path: path.to_owned(), events })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) const fn events(&self) -> &File {
        &self.events
    }

    /// Returns true if the kernel lets this process move a process here and back.
    fn accepts_processes(&self) -> bool {
        let writable = |path: &Path| File::options().write(true).open(path).is_ok();
        let parent = self.path.parent().map(|path| path.join("cgroup.procs"));
        writable(&self.path.join("cgroup.procs")) && parent.is_some_and(|it| writable(&it))
    }

    /// Moves the calling process into the cgroup at `path`.
    pub(crate) fn enter(path: &Path) -> io::Result<()> {
        fs::write(path.join("cgroup.procs"), "0")
    }

    /// Sends KILL to every process in it and below.
    pub(crate) fn kill(&self) {
        // A failure shows in `is_empty`, on which every caller depends.
        fs::write(self.path.join("cgroup.kill"), "1").ok();
    }

    /// Returns true if no process is left in it or below.
    pub(crate) fn is_empty(&self) -> bool {
        let mut text = String::new();
        let mut events = &self.events;
        let read = events.rewind().and_then(|()| events.read_to_string(&mut text));
        match read {
            Ok(_) => text.lines().any(|line| line == "populated 0"),
            // The directory was removed, which the kernel allows only when it is empty.
            Err(_) => !self.path.exists(),
        }
    }

    /// The processes in it and below.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        for directory in tree(&self.path) {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
        }
        pids
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Inner cgroups before outer ones.
        for directory in tree(&self.path).iter().rev() {
            fs::remove_dir(directory).ok();
        }
    }
}

/// A directory and all directories below it, outer ones first.
fn tree(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next) {
        next += 1;
        let Ok(entries) = fs::read_dir(directory) else { continue };
        let entries = entries.flatten().filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
        let inner: Vec<PathBuf> = entries.map(|it| it.path()).collect();
        found.extend(inner);
    }
    found
}

/// The directory of this process's cgroup.
fn own() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    // "36 35 0:31 /ROOT /MOUNT OPTIONS… - cgroup2 …"
    let mount = mounts.lines().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let mut words = head.split(' ').skip(3);
        let (root, mount) = (words.next()?, words.next()?);
        tail.starts_with("cgroup2 ").then_some((root, mount))
    });
    let (root, mount) = mount?;
    let full = Path::new("/").join(own);
    Some(Path::new(mount).join(full.strip_prefix(root).ok()?))
}
