# SPDX-License-Identifier: Apache-2.0
# Completion of k8snet-trace for fish.
function __k8snet_trace_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    # What the program prints is data: fish quotes a value before it puts it on the command line.
    for line in (env COMP_WORDS=(string join \n -- (string escape -- $before) $current | string collect) COMP_CWORD=(count $before) \
            _K8SNET_TRACE_COMPLETE=fish_complete k8snet-trace 2>/dev/null)
        set -l part (string split \t -- $line)
        switch $part[1]
            case file
                __fish_complete_path (string replace -r '^--[^=]*=' '' -- $current)
            case plain
                set -l option (string match -r '^--[^=]*=' -- $current)
                printf '%s%s\t%s\n' "$option" $part[2] $part[3]
        end
    end
end
complete -c k8snet-trace -f -a '(__k8snet_trace_complete)'
