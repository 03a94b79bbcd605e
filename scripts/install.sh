#!/bin/sh
# Installs izwi from a release, or removes it: `install.sh --help`.
#
# Everything is in functions and `main` is called in the last line, so that a script that was cut off does nothing.
set -eu

# Where releases lie. `cargo xtask release-files` fills it in.
RELEASES="@RELEASES@"

usage() {
    cat <<'END'
usage: install.sh [--version VERSION] [--prefix FOLDER] [--from ADDRESS] [--uninstall]

Installs the program izwi with its manual pages and completions, for this user alone.

  --version VERSION  a release such as 0.1.0; the latest one without it
  --prefix FOLDER    where bin/ and share/ are; ~/.local without it
  --from ADDRESS     a folder that has the files of a release, over https (or http on this machine)
  --uninstall        remove what this script installed; models and settings stay
END
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# The platform, as the archives of a release name it.
target() {
    system=$(uname -s)
    machine=$(uname -m)
    # A shell under Rosetta tells the wrong processor.
    if [ "$system" = Darwin ] && [ "$(sysctl -n sysctl.proc_translated 2>/dev/null || echo 0)" = 1 ]; then
        machine=arm64
    fi
    case "$system $machine" in
        "Linux x86_64") echo x86_64-unknown-linux-gnu ;;
        "Linux aarch64" | "Linux arm64") echo aarch64-unknown-linux-gnu ;;
        "Darwin arm64") echo aarch64-apple-darwin ;;
        *) fail "no release for $system on $machine; build from source with 'cargo install --path crates/izwi-cli'" ;;
    esac
}

# The address of the folder with the files of a release.
folder() {
    if [ -n "$from" ]; then
        echo "${from%/}"
    elif [ "$RELEASES" = "@""RELEASES@" ]; then
        fail "this copy of the script belongs to no release; give the address of one with --from"
    elif [ -n "$version" ]; then
        echo "$RELEASES/download/v${version#v}"
    else
        echo "$RELEASES/latest/download"
    fi
}

# download ADDRESS FILE
download() {
    case "$1" in
        https://*) protocols="=https" ;;
        http://127.0.0.1[:/]* | http://localhost[:/]* | "http://[::1]"[:/]*) protocols="=http" ;;
        *) fail "'$1' is not https; give an https address with --from" ;;
    esac
    if has curl; then
        curl --proto "$protocols" --fail --silent --show-error --location --retry 3 --output "$2" "$1" ||
            fail "cannot download $1; check the version and the network"
    elif has wget; then
        wget --quiet --tries 3 --output-document "$2" "$1" || fail "cannot download $1; check the version and the network"
    else
        fail "neither curl nor wget is installed; install one of them"
    fi
}

sha256() {
    if has sha256sum; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif has shasum; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    elif has openssl; then
        openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
    else
        fail "no program for sha256 (sha256sum, shasum, openssl) is installed; install one of them"
    fi
}

# verify ARCHIVE NAME SUMS: the archive has the sum that the list has for its name.
verify() {
    expected=$(awk -v name="$2" '$2 == name || $2 == "*" name { print $1 }' "$3")
    [ -n "$expected" ] || fail "SHA256SUMS of this release does not list $2; this platform may have no archive there"
    actual=$(sha256 "$1")
    [ "$actual" = "$expected" ] ||
        fail "$2 has the sha256 $actual, but the release says $expected; nothing was installed, try again later"
}

install() {
    target=$(target)
    name="izwi-$target.tgz"
    address=$(folder)
    work=$(mktemp -d)
    new=
    trap 'rm -rf "$work" ${new:+"$new"}' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    echo "downloading $address/$name" >&2
    download "$address/SHA256SUMS" "$work/SHA256SUMS"
    download "$address/$name" "$work/$name"
    verify "$work/$name" "$name" "$work/SHA256SUMS"
    tar -xzf "$work/$name" -C "$work" || fail "$name cannot be unpacked"
    unpacked="$work/izwi-$target"

    mkdir -p "$prefix/bin" "$prefix/share" || fail "cannot make $prefix/bin; choose another folder with --prefix"
    # Beside its place, so that the last step is a rename within one file system.
    new="$prefix/bin/.izwi.$$"
    cp "$unpacked/bin/izwi" "$new" || fail "cannot write to $prefix/bin; choose another folder with --prefix"
    chmod 755 "$new"
    runs=$("$new" --version 2>&1) || fail "the program does not run on this system: $runs"
    cp -R "$unpacked/share/." "$prefix/share/" || fail "cannot write to $prefix/share; choose another folder with --prefix"
    mv -f "$new" "$prefix/bin/izwi"
    new=

    echo "installed $runs as $prefix/bin/izwi" >&2
    case ":$PATH:" in
        *":$prefix/bin:"*) ;;
        *) echo "$prefix/bin is not in PATH: add it in your shell's profile, such as: export PATH=\"$prefix/bin:\$PATH\"" >&2 ;;
    esac
}

uninstall() {
    [ -e "$prefix/bin/izwi" ] || fail "$prefix/bin/izwi does not exist; name the folder of the installation with --prefix"
    rm -f "$prefix/bin/izwi" "$prefix/share/man/man1/izwi.1" "$prefix/share/man/man1/izwi-"*.1 \
        "$prefix/share/bash-completion/completions/izwi" "$prefix/share/zsh/site-functions/_izwi" \
        "$prefix/share/fish/vendor_completions.d/izwi.fish"
    rm -rf "$prefix/share/doc/izwi"
    echo "removed $prefix/bin/izwi; models, voices and settings stay" >&2
}

main() {
    version=
    from=
    prefix="${HOME:?HOME is not set}/.local"
    action=install
    while [ $# -gt 0 ]; do
        case "$1" in
            --version | --prefix | --from)
                [ $# -ge 2 ] || fail "$1 needs a value; see --help"
                case "$1" in
                    --version) version=$2 ;;
                    --prefix) prefix=${2%/} ;;
                    --from) from=$2 ;;
                esac
                shift
                ;;
            --uninstall) action=uninstall ;;
            -h | --help) action=usage ;;
            *) fail "unknown argument '$1'; see --help" ;;
        esac
        shift
    done
    case "$prefix" in
        /*) ;;
        *) fail "--prefix '$prefix' is not an absolute folder; give one that starts with /" ;;
    esac
    "$action"
}

main "$@"
