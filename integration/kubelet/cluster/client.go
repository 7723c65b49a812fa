package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Client sends requests to the API server as one user.
type Client struct {
	url   string
	http  *http.Client
	token string // empty for a user with a certificate
}

func newClient(certs ...tls.Certificate) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		// The API server creates a self-signed certificate.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}, MaxIdleConnsPerHost: 50,
	}}}
}

// User returns a client for a user, which the API server authenticates by a certificate. A node is the user
// system:node:NAME of the group system:nodes.
func (c *Cluster) User(name string, groups ...string) (*Client, error) {
	cert, err := c.users.issue(name, groups, time.Now().Add(day))
	if err != nil {
		return nil, err
	}
	u := newClient(cert)
	u.url = c.url
	return u, nil
}

// Node returns a client for the user of a node. It has one connection, with HTTP/2, as that of a kubelet.
func (c *Cluster) Node(name string) (*Client, error) {
	u, err := c.User("system:node:"+name, nodes)
	if err != nil {
		return nil, err
	}
	t := u.http.Transport.(*http.Transport)
	t.ForceAttemptHTTP2, t.DialContext = true, (&net.Dialer{Timeout: 30 * time.Second}).DialContext
	return u, nil
}

// Do sends a request to the API server. in and out are the JSON bodies of the request and the response, or nil. If the
// API server refuses the request, the error is an [apierrors.StatusError].
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.Send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// Send is Do without reading the response. The caller closes the body if there is no error.
func (c *Client) Send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("Content-Type", contentType(method))
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %w", method, path, resp.Status, refusal(resp))
	}
	return resp, nil
}

func contentType(method string) string {
	if method == http.MethodPatch {
		return "application/merge-patch+json"
	}
	return "application/json"
}

// refusal returns the error that the API server reports in a response.
func refusal(resp *http.Response) error {
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var status meta.Status
	if json.Unmarshal(b, &status) != nil || status.Kind != "Status" {
		return fmt.Errorf("%s", b)
	}
	return &apierrors.StatusError{ErrStatus: status}
}
