package cluster

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// nodes is the group of all nodes.
const nodes = "system:nodes"

// WriteKubeconfig writes a kubeconfig file with all permissions, whose context has a namespace. Empty means default.
func (c *Cluster) WriteKubeconfig(path, namespace string) error {
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"test",
"clusters":[{"name":"test","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],
"users":[{"name":"test","user":{"token":%q}}],
"contexts":[{"name":"test","context":{"cluster":"test","user":"test","namespace":%q}}]}`, c.url, token, namespace)
	return os.WriteFile(path, []byte(kubeconfig), 0o600)
}

// WriteNodeKubeconfig writes a kubeconfig file for the user of a node, with a client certificate in a file of its own. It
// returns the path of the certificate, for [Cluster.WriteNodeCertificate]. server is the address of the API server; empty
// means that of the cluster.
func (c *Cluster) WriteNodeKubeconfig(path, node, server string) (certificate string, _ error) {
	if server == "" {
		server = c.Server()
	}
	certificate = filepath.Join(filepath.Dir(path), "client.pem")
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"node",
"clusters":[{"name":"test","cluster":{"server":"https://%s","insecure-skip-tls-verify":true}}],
"users":[{"name":"node","user":{"client-certificate":%q,"client-key":%q}}],
"contexts":[{"name":"node","context":{"cluster":"test","user":"node"}}]}`, server, certificate, certificate)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	if err := c.WriteNodeCertificate(certificate, node, time.Now().Add(day)); err != nil {
		return "", err
	}
	return certificate, replace(path, []byte(kubeconfig))
}

// WriteNodeCertificate writes a new client certificate of a node and its key to a file, which it replaces, as kubelet does
// when it rotates its certificate.
func (c *Cluster) WriteNodeCertificate(path, node string, expires time.Time) error {
	cert, err := c.users.issue("system:node:"+node, []string{nodes}, expires)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	return replace(path, append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...))
}

// Server returns the host and port of the API server.
func (c *Cluster) Server() string { return strings.TrimPrefix(c.url, "https://") }

// replace writes a file that is never seen half written.
func replace(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
