package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"time"
)

// authority issues client certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority creates a certificate authority and writes its certificate to a file.
func newAuthority(file string) (*authority, error) {
	template := certificate(pkix.Name{CommonName: "users"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	a := &authority{cert: template}
	cert, err := a.issueFrom(template)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
		return nil, err
	}
	a.key = cert.PrivateKey.(crypto.Signer)
	return a, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o644)
}

// issue returns a certificate of a user, which is valid until expires.
func (a *authority) issue(user string, groups []string, expires time.Time) (tls.Certificate, error) {
	template := certificate(pkix.Name{CommonName: user, Organization: groups})
	template.NotAfter = expires
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issueFrom(template)
}

// issueFrom returns a certificate that the authority signs. An authority without a key signs with the certificate's own.
func (a *authority) issueFrom(template *x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), signer)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// day is how long certificates are valid.
const day = 24 * time.Hour

func certificate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject: subject, SerialNumber: big.NewInt(now.UnixNano()),
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(day),
	}
}
