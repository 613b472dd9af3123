//! A browser without a window, driven over a pipe by the protocol of its developer tools.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{LONG, temp_dir, until};

/// A page of Chromium.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Value,
    number: u64,
    profile: std::path::PathBuf,
    /// What the page reported: exceptions, and loads that its policy refused.
    pub faults: Vec<String>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.profile).ok();
    }
}

/// Chromium, installed if this is a Debian machine and root runs the test; else the reason why not.
fn program() -> Result<&'static str, String> {
    let found = || {
        let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok();
        ["chromium", "chromium-browser", "google-chrome"].into_iter().find(runs)
    };
    if let Some(name) = found() {
        return Ok(name);
    }
    let args = ["install", "-y", "-q", "--no-install-recommends", "chromium"];
    let installed = Command::new("apt-get").args(args).stdin(Stdio::null()).output();
    match (found(), installed) {
        (Some(name), _) => Ok(name),
        (None, Err(error)) => Err(format!("no Chromium here, and apt-get: {error}")),
        (None, Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().next_back().unwrap_or_default().to_owned();
            Err(format!("no Chromium here, and apt-get install chromium fails: {last}"))
        }
    }
}

impl Browser {
    /// Starts a browser; an error is the reason why there is none.
    pub(crate) fn start() -> Result<Self, String> {
        let profile = temp_dir();
        // The pipe of the developer tools is at descriptors 3 and 4.
        let script = format!(
            "exec {} --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
             --no-first-run --disable-background-networking --remote-debugging-pipe \
             --user-data-dir={} about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1",
            program()?,
            profile.display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let commands = child.stdin.take().ok_or("no pipe")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while output.read_until(0, &mut bytes).is_ok_and(|length| length > 0) {
                let message = serde_json::from_slice(&bytes[..bytes.len() - 1]);
                if message.map_or(true, |message| sender.send(message).is_err()) {
                    return;
                }
                bytes.clear();
            }
        });
        let mut browser = Self {
            child,
            commands,
            messages,
            session: Value::Null,
            number: 0,
            profile,
            faults: Vec::new(),
        };
        let target = browser.send("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.send("Target.attachToTarget", &attach)["sessionId"].clone();
        for domain in ["Page", "Runtime", "Log", "Accessibility"] {
            browser.send(&format!("{domain}.enable"), &json!({}));
        }
        Ok(browser)
    }

    /// Sends a command and waits for its result.
    pub(crate) fn send(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut command = json!({"id": self.number, "method": method, "params": params});
        if !self.session.is_null() {
            command["sessionId"] = self.session.clone();
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let message = self.messages.recv_timeout(LONG).unwrap();
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            if ["Runtime.exceptionThrown", "Log.entryAdded"]
                .iter()
                .any(|it| message["method"] == *it)
            {
                self.faults.push(message["params"].to_string());
            }
        }
    }

    pub(crate) fn go(&mut self, url: &str) {
        self.send("Page.navigate", &json!({"url": url}));
    }

    /// The value of an expression, awaited if it is a promise.
    pub(crate) fn js(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.send("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        // A page that is being loaded has no elements yet.
        let safe =
            format!("(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()");
        let mut last = Value::Null;
        until(expression, || {
            last = self.js(&safe);
            std::thread::sleep(Duration::from_millis(30));
            last == true
        });
    }

    /// Presses a key.
    pub(crate) fn key(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "End" => 35,
            "Home" => 36,
            "ArrowUp" => 38,
            "ArrowDown" => 40,
            _ => 0,
        };
        let text = if key == "Enter" { "\r" } else { key };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if text.chars().count() == 1 {
            down["text"] = text.into();
        }
        self.send("Input.dispatchKeyEvent", &down);
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.send("Input.dispatchKeyEvent", &up);
    }

    /// Types a text.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.send("Input.insertText", &json!({"text": text}));
    }

    /// Sets the size of the window and the colours that its user prefers.
    pub(crate) fn window(&mut self, width: u32, height: u32, colours: &str) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.send("Emulation.setDeviceMetricsOverride", &size);
        let features = json!([{"name": "prefers-color-scheme", "value": colours}]);
        self.send("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Writes a picture of the page to the folder in `KOFM_SCREENSHOTS`, if there is one.
    pub(crate) fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("KOFM_SCREENSHOTS") else { return };
        let data = self.send("Page.captureScreenshot", &json!({"format": "png"}));
        let file = std::fs::File::create(Path::new(&folder).join(format!("{name}.png"))).unwrap();
        let mut decode =
            Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(file).spawn().unwrap();
        let text = data["data"].as_str().unwrap().as_bytes().to_vec();
        decode.stdin.take().unwrap().write_all(&text).unwrap();
        assert!(decode.wait().unwrap().success());
    }
}
