/**
 * The scripts that complete commands in bash and zsh. Words of the command line and names of files may come from others.
 * The scripts must never evaluate them: they hand them on as they are, and quote what they insert.
 */

/** bash gives the words as they were typed, and splits them at `=`. */
const BASH = `# Completes the commands of batchd in bash.
_batchd_complete() {
    local word value plain cur=\${COMP_WORDS[COMP_CWORD]}
    local -a words=()
    for word in "\${COMP_WORDS[@]:1:COMP_CWORD}"; do
        [[ $word == "=" ]] || words+=("\${word//[\\\\\\'\\"]/}")
    done
    [[ $cur == "=" ]] && cur="" && words+=("")
    plain=\${cur//[\\\\\\'\\"]/}
    COMPREPLY=()
    # The shell completes names of files in quotes.
    [[ $cur == [\\'\\"]* ]] && return
    while IFS= read -r value; do
        value=\${value%%$'\\t'*}
        [[ $value == "$plain"* && $value != :* && -n $value ]] || continue
        [[ $value == */ ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("$(printf %q "$value")")
    done < <(batchd complete -- "\${words[@]}" 2>/dev/null)
}
complete -o default -F _batchd_complete batchd
`;

const ZSH = `#compdef batchd
# Completes the commands of batchd in zsh.
_batchd() {
    local line value
    local -a words_given proposed folders texts
    words_given=("\${(@Q)words[2,CURRENT]}")
    for line in "\${(@f)$(batchd complete -- "\${(@)words_given}" 2>/dev/null)}"; do
        value=\${line%%$'\\t'*}
        [[ -z $value || $value == :* ]] && continue
        if [[ $value == */ ]]; then
            folders+=("$value")
        else
            proposed+=("$value")
            texts+=("\${value//:/\\\\:}:\${line#*$'\\t'}")
        fi
    done
    # The proposals are values, without the option in front of them.
    [[ $PREFIX == -*=* ]] && compset -P '*='
    (( \${#folders} )) && compadd -S '' -- "\${(@)folders}"
    (( \${#proposed} )) && _describe batchd texts proposed
    (( \${#folders} + \${#proposed} )) || _files
}
compdef _batchd batchd
`;

export const SCRIPTS: Readonly<Record<string, string>> = { bash: BASH, zsh: ZSH };
