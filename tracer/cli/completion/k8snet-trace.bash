# SPDX-License-Identifier: Apache-2.0
# Completion of k8snet-trace for bash, with bash-completion.
_k8snet_trace_completion() {
    local cur cword words line value before cut IFS=$' \t\n'
    local -a answer
    COMPREPLY=()
    declare -F _get_comp_words_by_ref >/dev/null || return 0
    _get_comp_words_by_ref -n := cur words cword
    # What the program prints is data: it is never expanded, and a value is quoted before it is put on the command line.
    mapfile -t answer < <(
        IFS=$'\n'
        COMP_WORDS="${words[*]}" COMP_CWORD=$cword _K8SNET_TRACE_COMPLETE=bash_complete k8snet-trace 2>/dev/null
    )
    # Readline replaces only what follows the last colon or equals sign of the word, where these break words.
    value=${cur#--*=}
    before=${cur%"$value"} cut=
    [[ $COMP_WORDBREAKS == *=* ]] && before=
    [[ $COMP_WORDBREAKS == *:* && $value == *:* ]] && before= cut=${value%"${value##*:}"}
    for line in "${answer[@]}"; do
        value=${line#*$'\t'}
        value=${value%%$'\t'*}
        case ${line%%$'\t'*} in
            file)
                compopt -o default 2>/dev/null
                COMPREPLY=()
                return 0
                ;;
            plain)
                printf -v value %q "${value#"$cut"}"
                COMPREPLY+=("$before$value")
                ;;
        esac
    done
} && complete -F _k8snet_trace_completion k8snet-trace
