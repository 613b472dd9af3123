{
  description = "kofm: share k out of M units among many machines";

  inputs.nixpkgs.url = "nixpkgs";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
      cargo = builtins.fromTOML (builtins.readFile ./Cargo.toml);
    in {
      packages = each (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "kofm";
          version = cargo.workspace.package.version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [ "-p" "kofm" ];
          # The tests start clusters and take long; they run in the repository.
          doCheck = false;
          KOFM_COMMIT = self.shortRev or "";
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            $out/bin/kofm man --dir man
            installManPage man/*.1
            for shell in bash zsh fish; do
              $out/bin/kofm completions $shell > kofm.$shell
              installShellCompletion --cmd kofm --$shell kofm.$shell
            done
          '';
          meta.mainProgram = "kofm";
        };
      });
      devShells = each (pkgs: {
        default = pkgs.mkShell { packages = [ pkgs.cargo pkgs.rustc pkgs.clippy pkgs.rustfmt pkgs.python3 ]; };
      });
    };
}
