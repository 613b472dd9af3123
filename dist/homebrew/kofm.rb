# Builds from a checkout: HOMEBREW_KOFM_SOURCE=/path/to/kofm brew install --HEAD ./dist/homebrew/kofm.rb
class Kofm < Formula
  desc "Share k out of M units among many machines"
  license any_of: ["MIT", "Apache-2.0"]
  head ENV.fetch("HOMEBREW_KOFM_SOURCE", Dir.pwd), using: :git, branch: "main"

  depends_on "rust" => :build
  # Leases use CLOCK_BOOTTIME and process groups of Linux.
  depends_on :linux

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/kofm")
    generate_completions_from_executable(bin/"kofm", "completions")
    system bin/"kofm", "man", "--dir", buildpath/"man"
    man1.install Dir["man/*.1"]
  end

  test do
    assert_match "wire", shell_output("#{bin}/kofm --version")
  end
end
