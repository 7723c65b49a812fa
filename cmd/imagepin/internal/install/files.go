//go:build unix

package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Mode is where imagepin runs.
type Mode string

const (
	// Plugin replaces the node's containerd by one with imagepin.
	Plugin Mode = "plugin"
	// Serve runs imagepin beside the node's containerd, and lets kubelet use its socket.
	Serve Mode = "serve"
)

// Paths on the node. /usr can be read-only, so nothing is written there.
const (
	dir         = "/opt/imagepin"
	binDir      = dir + "/bin"
	stagedDir   = dir + "/staged"
	previousDir = dir + "/previous"
	recordFile  = dir + "/install.json"
	unitDir     = "/etc/systemd/system"
	configFile  = "/etc/imagepin/config.toml"

	containerdDropIn = unitDir + "/containerd.service.d/50-imagepin.conf"
	kubeletDropIn    = unitDir + "/kubelet.service.d/50-imagepin.conf"
	socketFile       = unitDir + "/" + socketUnit
	serviceFile      = unitDir + "/" + serviceUnit
)

// stateDirs are the directories that imagepin.service creates.
var stateDirs = []string{"/var/lib/imagepin", "/run/imagepin"}

// bundlesDir is the operator's directory of bundles in the first of stateDirs, the default of bundles_directory.
const bundlesDir = "bundles"

// packagedFiles are files of the packages, which an installation must not mix with.
var packagedFiles = []string{"/usr/lib/systemd/system/imagepin.service", "/usr/lib/imagepin/bin/containerd"}

// sources are the files of a mode below a directory, as the packages have them, and their paths below [stagedDir].
func sources(from string, m Mode) map[string]string {
	files := map[string]string{filepath.Join(from, "usr/bin/imagepin"): "bin/imagepin"}
	if m == Serve {
		for _, unit := range []string{socketUnit, serviceUnit} {
			files[filepath.Join(from, "usr/lib/systemd/system", unit)] = unit
		}
		files[filepath.Join(from, configFile)] = "config.toml"
		return files
	}
	for _, name := range containerdBinaries {
		files[filepath.Join(from, "usr/lib/imagepin/bin", name)] = "bin/" + name
	}
	return files
}

// containerdBinaries are the binaries of mode plugin, besides the command.
var containerdBinaries = []string{"containerd", "containerd-shim-runc-v2", "ctr"}

// target is a file that a mode puts on the node.
type target struct {
	path    string
	content []byte
	mode    os.FileMode
	// keep leaves a file that exists as it is.
	keep bool
}

// binaries returns the names of the binaries of a mode.
func (m Mode) binaries() []string {
	if m == Plugin {
		return append([]string{"imagepin"}, containerdBinaries...)
	}
	return []string{"imagepin"}
}

// targets returns the files of a mode. execStart is the command of containerd.service, and searchPath its PATH.
func targets(m Mode, execStart []string, searchPath string) ([]target, error) {
	var all []target
	for _, name := range m.binaries() {
		content, err := os.ReadFile(filepath.Join(stagedDir, "bin", name))
		if err != nil {
			return nil, err
		}
		all = append(all, target{path: filepath.Join(binDir, name), content: content, mode: 0o755})
	}
	if m == Plugin {
		dropIn, err := dropInOfContainerd(execStart, searchPath)
		return append(all, target{path: containerdDropIn, content: dropIn, mode: 0o644}), err
	}
	for _, unit := range []string{socketUnit, serviceUnit} {
		content, err := os.ReadFile(filepath.Join(stagedDir, unit))
		if err != nil {
			return nil, err
		}
		text := strings.ReplaceAll(string(content), "/usr/bin/imagepin", filepath.Join(binDir, "imagepin"))
		all = append(all, target{path: filepath.Join(unitDir, unit), content: []byte(text), mode: 0o644})
	}
	config, err := os.ReadFile(filepath.Join(stagedDir, "config.toml"))
	if err != nil {
		return nil, err
	}
	_, err = os.Stat(filepath.Join(stagedDir, configGiven))
	// It can contain registry credentials.
	return append(all, target{path: configFile, content: config, mode: 0o600, keep: err != nil}), nil
}

// configGiven is a staged file that exists if the operator has given the configuration.
const configGiven = "config-given"

// dropInOfContainerd returns the drop-in that makes containerd.service run the containerd with imagepin, with the arguments
// that the unit has. Its directory is first in PATH, for the shim.
func dropInOfContainerd(execStart []string, searchPath string) ([]byte, error) {
	if len(execStart) == 0 {
		return nil, fmt.Errorf("%s has no ExecStart", containerdUnit)
	}
	var command strings.Builder
	command.WriteString(filepath.Join(binDir, "containerd"))
	for _, arg := range execStart[1:] {
		command.WriteString(" " + quote(arg))
	}
	return fmt.Appendf(nil, `# Written by imagepin install. "imagepin uninstall --root /" removes it.
[Service]
Environment=%s
ExecStart=
ExecStart=%s
# With SIGTERM, a containerd that is still starting can end its containers.
TimeoutStartFailureMode=kill
`, quote("PATH="+binDir+":"+searchPath), command.String()), nil
}

// quote quotes an argument for ExecStart of a unit, see systemd.service(5). systemd has replaced its specifiers already, and
// replaces its variables again.
func quote(arg string) string {
	arg = strings.ReplaceAll(arg, "%", "%%")
	if arg != "" && !strings.ContainsAny(arg, " \t\n\"'\\;") {
		return arg
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(arg) + `"`
}

// orderOfKubelet is the drop-in that starts kubelet after imagepin.
const orderOfKubelet = `# Written by imagepin install. "imagepin uninstall --root /" removes it.
[Unit]
Wants=imagepin.socket
After=imagepin.socket imagepin.service
`
