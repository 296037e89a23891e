// The control plane of Kubernetes and kubectl as one program: the first argument selects the component.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 cmd.NewDefaultKubectlCommand,
}

func main() {
	arguments := os.Args[1:]
	// A link named kubectl is kubectl: people type its name.
	if name := filepath.Base(os.Args[0]); components[name] != nil {
		arguments = append([]string{name}, arguments...)
	}
	if len(arguments) == 0 {
		fmt.Fprintln(os.Stderr, "name a component: etcd, kube-apiserver, kube-controller-manager, kube-scheduler or kubectl")
		os.Exit(2)
	}
	os.Args = arguments
	if arguments[0] == "etcd" {
		etcdmain.Main(arguments)
		return
	}
	component, known := components[arguments[0]]
	if !known {
		fmt.Fprintf(os.Stderr, "%s is not a component\n", arguments[0])
		os.Exit(2)
	}
	os.Exit(cli.Run(component()))
}
