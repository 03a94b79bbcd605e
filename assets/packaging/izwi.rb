# Homebrew formula. `cargo xtask release-files` fills in the version, the address and the sums.
class Izwi < Formula
  desc "Local speech service: text to speech and speech to text"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license "Apache-2.0"

  on_macos do
    depends_on arch: :arm64
    depends_on macos: :sequoia
    url "@RELEASES@/download/v@VERSION@/izwi-aarch64-apple-darwin.tgz"
    sha256 "@SHA256_aarch64-apple-darwin@"
  end

  on_linux do
    on_arm do
      url "@RELEASES@/download/v@VERSION@/izwi-aarch64-unknown-linux-gnu.tgz"
      sha256 "@SHA256_aarch64-unknown-linux-gnu@"
    end
    on_intel do
      url "@RELEASES@/download/v@VERSION@/izwi-x86_64-unknown-linux-gnu.tgz"
      sha256 "@SHA256_x86_64-unknown-linux-gnu@"
    end
  end

  def install
    bin.install "bin/izwi"
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install "share/bash-completion/completions/izwi"
    zsh_completion.install "share/zsh/site-functions/_izwi"
    fish_completion.install "share/fish/vendor_completions.d/izwi.fish"
  end

  service do
    run [opt_bin/"izwi", "serve"]
    keep_alive true
    log_path var/"log/izwi.log"
    error_log_path var/"log/izwi.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/izwi --version")
  end
end
