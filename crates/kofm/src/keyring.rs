//! Tokens that the command line finds by itself: one file per address, for this user only.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directory for the tokens of this user.
fn dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("kofm"))
}

/// The file for an address, as `127.0.0.1:7600` or `http://127.0.0.1:7600`.
fn path(address: &str) -> Option<PathBuf> {
    let place = address.trim().trim_start_matches("http://").trim_end_matches('/');
    let place = place.replace("localhost:", "127.0.0.1:");
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    Some(dir()?.join(format!("token-{}", place.chars().map(plain).collect::<String>())))
}

/// The token for an address, if there is one that only this user can read.
pub(crate) fn find(address: &str) -> Option<String> {
    let path = path(address)?;
    let others = fs::metadata(&path).ok()?.permissions().mode() % 0o100;
    let closed = others == 0;
    let text = fs::read_to_string(&path).ok().filter(|_| closed)?;
    Some(text.trim().to_owned()).filter(|it| !it.is_empty() && !it.contains(char::is_control))
}

/// Keeps the token for an address; says where.
pub(crate) fn keep(address: &str, token: &str) -> io::Result<PathBuf> {
    let none = || io::Error::other("neither XDG_STATE_HOME nor HOME is set");
    let path = path(address).ok_or_else(none)?;
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    write(&path, token)?;
    Ok(path)
}

fn write(path: &Path, token: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::remove_file(&fresh).ok();
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

/// Forgets the token of an address.
pub(crate) fn forget(path: &Path) {
    fs::remove_file(path).ok();
}
