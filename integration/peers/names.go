package peers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hosts are the registries that the suites name. In the namespaces of a suite, all are the registry of the test.
var hosts = []string{"ghcr.io", "registry.k8s.io", "k8s.gcr.io", "gcr.io", "registry-1.docker.io", "docker.io", "quay.io"}

// hostsFile is /etc/hosts in the namespaces of a suite.
func hostsFile() []byte {
	return []byte("127.0.0.1 localhost " + strings.Join(hosts, " ") + "\n::1 localhost\n")
}

// serveHosts serves a registry on the HTTPS port of the hosts, and writes the certificate of their authority to a file.
func serveHosts(reg http.Handler, authority string) error {
	cert, err := certificate(authority)
	if err != nil {
		return err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:443", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: reg, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }() // until the process exits
	return nil
}

// certificate returns a certificate for the hosts that is its own authority.
func certificate(authority string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "imagepin test kit"}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	err = os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// loopbackUp sets the loopback interface of a new network namespace up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("ioctl", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr))
}
