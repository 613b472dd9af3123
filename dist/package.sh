#!/bin/sh
# usage: dist/package.sh deb|tarball BINARY OUT
# Writes OUT/kofm_VERSION_ARCH.deb or OUT/kofm-VERSION-MACHINE-linux.tar.gz, and its .sha256 beside it.
# Man pages and completions come from the binary itself.
set -eu

kind=$1 binary=$2 out=$3
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -n 1)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
mkdir -p "$out"
out=$(cd "$out" && pwd)
umask 022

# Fills a prefix, /usr or a directory to unpack anywhere.
fill() {
    prefix=$1 units=$2
    install -D -m 755 "$binary" "$prefix/bin/kofm"
    if command -v strip >/dev/null; then strip "$prefix/bin/kofm" || true; fi
    "$binary" man --dir "$prefix/share/man/man1"
    gzip -n9 "$prefix/share/man/man1/"*.1
    mkdir -p "$prefix/share/bash-completion/completions" "$prefix/share/zsh/vendor-completions" \
        "$prefix/share/fish/vendor_completions.d"
    "$binary" completions bash >"$prefix/share/bash-completion/completions/kofm"
    "$binary" completions zsh >"$prefix/share/zsh/vendor-completions/_kofm"
    "$binary" completions fish >"$prefix/share/fish/vendor_completions.d/kofm.fish"
    for file in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE examples/site.toml; do
        install -D -m 644 "$here/$file" "$prefix/share/doc/kofm/$(basename "$file")"
    done
    install -D -m 644 "$here/dist/kofm.service" "$units/kofm.service"
}

case $kind in
tarball)
    name=kofm-$version-$(uname -m)-linux
    fill "$stage/$name" "$stage/$name/share/systemd"
    file=$name.tar.gz
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$stage" -cf - "$name" |
        gzip -n9 >"$out/$file"
    ;;
deb)
    arch=$(dpkg --print-architecture)
    fill "$stage/usr" "$stage/usr/lib/systemd/system"
    install -D -m 644 "$here/dist/kofm-user.conf" \
        "$stage/usr/lib/systemd/system/kofm.service.d/user.conf"
    install -D -m 644 "$here/dist/kofm.sysusers" "$stage/usr/lib/sysusers.d/kofm.conf"
    mkdir -p "$stage/etc/kofm" "$stage/DEBIAN"
    for script in postinst prerm postrm; do
        install -m 755 "$here/dist/deb/$script" "$stage/DEBIAN/$script"
    done
    size=$(du -sk --exclude=DEBIAN "$stage" | cut -f1)
    cat >"$stage/DEBIAN/control" <<EOF
Package: kofm
Version: $version
Architecture: $arch
Maintainer: kofm <kofm@localhost>
Installed-Size: $size
Depends: libc6
Section: admin
Priority: optional
Description: share k out of M units among many machines
 Grants exclusive use of GPUs, licences, test boards and reboot slots to
 processes on many machines, with a queue and leases and without a lock server.
EOF
    file=kofm_${version}_$arch.deb
    dpkg-deb -Zgzip --root-owner-group --build "$stage" "$out/$file" >/dev/null
    ;;
*)
    echo "package.sh: $kind: must be deb or tarball" >&2
    exit 64
    ;;
esac
(cd "$out" && sha256sum "$file" >"$file.sha256")
echo "$out/$file"
