package monitoring

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"
)

// Alert is an alert of the rules for Prometheus.
type Alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         time.Duration     `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// ReadAlerts reads the alerts in contrib/prometheus.
func ReadAlerts() ([]Alert, error) {
	f, err := os.Open(filepath.Join(contrib, "prometheus", "imagepin.rules.yaml"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var file struct {
		Groups []struct {
			Name  string  `yaml:"name"`
			Rules []Alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		return nil, err
	}
	var alerts []Alert
	for _, g := range file.Groups {
		alerts = append(alerts, g.Rules...)
	}
	if len(alerts) == 0 {
		return nil, errors.New("the rule file has no alerts")
	}
	return alerts, nil
}
