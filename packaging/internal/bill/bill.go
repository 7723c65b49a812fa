// Package bill writes software bills of materials.
package bill

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/imagepin/imagepin/packaging/internal/modules"
)

const homepage = "https://github.com/imagepin/imagepin"

// Binary is a Go program in a package.
type Binary struct {
	File string // path of the program
	Path string // path in the package
}

// Bill is the bill of materials of a package.
type Bill struct {
	Licenses map[modules.Module]modules.License

	name, version, platform string
	created                 time.Time
	binaries                []program
}

type program struct {
	path, sha256 string
	modules      []modules.Module
}

// New reads the modules in the binaries and finds their licenses. The platform is OS-ARCH.
func New(name, version, platform string, created time.Time, binaries []Binary) (*Bill, error) {
	b := &Bill{name: name, version: version, platform: platform, created: created, Licenses: make(map[modules.Module]modules.License)}
	for _, bin := range binaries {
		content, err := os.ReadFile(bin.File)
		if err != nil {
			return nil, err
		}
		mods, err := modules.Of(bin.File)
		if err != nil {
			return nil, err
		}
		mods = slices.DeleteFunc(mods, func(m modules.Module) bool { return m.Version == "" })
		b.binaries = append(b.binaries, program{path: bin.Path, sha256: fmt.Sprintf("%x", sha256.Sum256(content)), modules: mods})
		for _, m := range mods {
			if b.Licenses[m], err = m.License(); err != nil {
				return nil, err
			}
		}
	}
	if len(b.binaries) == 0 {
		return nil, fmt.Errorf("%s has no binaries", name)
	}
	return b, nil
}

// The parts of SPDX 2.3 that are used. https://spdx.github.io/spdx-spec/v2.3/
type (
	spdxDocument struct {
		SPDXVersion   string             `json:"spdxVersion"`
		DataLicense   string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		Name             string         `json:"name"`
		ID               string         `json:"SPDXID"`
		Version          string         `json:"versionInfo"`
		Supplier         string         `json:"supplier"`
		Download         string         `json:"downloadLocation"`
		FilesAnalyzed    bool           `json:"filesAnalyzed"`
		Checksums        []spdxChecksum `json:"checksums,omitempty"`
		LicenseConcluded string         `json:"licenseConcluded"`
		LicenseDeclared  string         `json:"licenseDeclared"`
		Copyright        string         `json:"copyrightText"`
		Comment          string         `json:"comment,omitempty"`
		ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
		Purpose          string         `json:"primaryPackagePurpose"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

// SPDX returns the bill as SPDX 2.3 in JSON. The package contains its binaries,
// and each binary depends on its modules.
func (b *Bill) SPDX() ([]byte, error) {
	const document, pkg = "SPDXRef-DOCUMENT", "SPDXRef-Package"
	full := fmt.Sprintf("%s-%s-%s", b.name, b.version, b.platform)
	id := sha256.New()
	doc := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", ID: document, Name: full,
		Creation: spdxCreation{Created: b.created.Format(time.RFC3339), Creators: []string{"Organization: imagepin", "Tool: imagepin-packaging-" + b.version}},
		Packages: []spdxPackage{{
			Name: b.name, ID: pkg, Version: b.version, Supplier: "Organization: imagepin", Download: homepage,
			LicenseConcluded: "Apache-2.0", LicenseDeclared: "Apache-2.0", Copyright: "NOASSERTION", Purpose: "INSTALL",
		}},
		Relationships: []spdxRelationship{{document, "DESCRIBES", pkg}},
	}
	ids := make(map[modules.Module]string)
	for i, m := range modules.Sorted(b.Licenses) {
		ids[m] = fmt.Sprintf("SPDXRef-Module-%d", i+1)
		doc.Packages = append(doc.Packages, spdxModule(ids[m], m, b.Licenses[m].ID))
	}
	for i, p := range b.binaries {
		fmt.Fprintln(id, p.path, p.sha256)
		ref := fmt.Sprintf("SPDXRef-Binary-%d", i+1)
		doc.Packages = append(doc.Packages, spdxPackage{
			Name: path.Base(p.path), ID: ref, Version: b.version, Supplier: "Organization: imagepin", Download: "NOASSERTION",
			Checksums:        []spdxChecksum{{"SHA256", p.sha256}},
			LicenseConcluded: "Apache-2.0", LicenseDeclared: "Apache-2.0", Copyright: "NOASSERTION", Comment: "installed as " + p.path, Purpose: "APPLICATION",
		})
		doc.Relationships = append(doc.Relationships, spdxRelationship{pkg, "CONTAINS", ref})
		for _, m := range p.modules {
			doc.Relationships = append(doc.Relationships, spdxRelationship{ref, "DEPENDS_ON", ids[m]})
		}
	}
	doc.Namespace = fmt.Sprintf("%s/sbom/%s-%x", homepage, full, id.Sum(nil)[:16])
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(doc)
	return out.Bytes(), err
}

func spdxModule(id string, m modules.Module, license string) spdxPackage {
	p := spdxPackage{
		Name: m.Path, ID: id, Version: m.Version, Supplier: "NOASSERTION", Download: fmt.Sprintf("https://proxy.golang.org/%s/@v/%s.zip", m.Path, m.Version),
		LicenseConcluded: license, LicenseDeclared: license, Copyright: "NOASSERTION", Purpose: "LIBRARY",
		ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}},
	}
	if m.Path == modules.Go {
		p.Version = strings.TrimPrefix(m.Version, "go")
		p.Download = "https://go.dev/dl/" + m.Version + ".src.tar.gz"
		p.ExternalRefs[0].Locator = "pkg:golang/stdlib@" + p.Version
	}
	if m.Sum != "" {
		p.Comment = "go.sum " + m.Sum
	}
	return p
}
