import { join } from 'node:path'
import type { Conversation, Json, Move, Offer } from './conversation.ts'

/** Files of the project before the agent starts. */
export const FILES: Readonly<Record<string, string>> = { 'a.txt': 'alpha\n', 'b.txt': 'beta\n' }
/** Expected files of the project after the agent has finished the task. */
export const FILES_AFTER: Readonly<Record<string, string>> = { ...FILES, 'a.txt': 'gamma\n', 'c.txt': 'gamma\nbeta\n' }
export const PROMPT = 'Read a.txt and b.txt, change alpha to gamma, and write both files to c.txt.'
export const ANSWER = 'All steps are done.'
export const MCP_MARK = 'mark-of-the-mcp-tool'
export const SEARCH_MARK = 'letters were found on the web'

const EDIT = { before: 'alpha', after: 'gamma' }
const PATCH = `*** Begin Patch\n*** Update File: a.txt\n@@\n-${EDIT.before}\n+${EDIT.after}\n*** End Patch\n`
const COMMAND = 'cat a.txt b.txt > c.txt'

type Calls = Move['calls']
/** Concurrent tool calls. */
interface Stage {
  readonly calls: Calls
  /** Texts that the results of the stage must contain. */
  readonly expected: readonly string[]
}

/**
 * The scripted model: two parallel reads, an edit, a command, and, if available, an MCP tool and a web search.
 *
 * The results in the request determine the next stage, so the model is stateless.
 *
 * @throws Error if a tool is missing, or if a result belongs to another call
 */
export function nextMove(conversation: Conversation, directory: string): Move {
  const { offers, results, canSearch } = conversation
  const [only] = offers
  if (!only) return { ...(canSearch && { search: 'Greek letters' }), text: `Greek ${SEARCH_MARK}.`, calls: [] }
  if (offers.length === 1 && only.name === 'web_search') return searchByFunction(conversation, only)
  let before = 0
  for (const [index, { calls, expected }] of stagesOf(offers, directory).entries()) {
    if (results.length < before + calls.length) {
      if (results.length > before) throw new Error(`Stage ${index} has only ${results.length - before} of its results.`)
      const search = index === 0 && canSearch ? { search: 'Greek letters' } : {}
      return { thought: `The thought of stage ${index}.`, ...search, text: `Stage ${index} begins.`, calls }
    }
    const outputs = results.slice(before, before + calls.length).map(({ output }) => output)
    for (const text of expected) {
      if (!outputs.join('\n').includes(text))
        throw new Error(`Stage ${index}: no '${text}' in ${JSON.stringify(outputs)}`)
    }
    before += calls.length
  }
  return { thought: 'The thought of the end.', text: ANSWER, calls: [] }
}

function searchByFunction({ results }: Conversation, offer: Offer): Move {
  if (results.length > 0) return { text: `Greek ${SEARCH_MARK}.`, calls: [] }
  return { calls: [{ offer, input: { query: 'Greek letters' } }] }
}

function stagesOf(offers: readonly Offer[], directory: string): Stage[] {
  const find = (name: string, ...parameters: string[]) =>
    offers.find((offer) => offer.name === name && parameters.every((parameter) => offer.parameters.includes(parameter)))
  const exec = find('exec')
  if (exec) return execStages(exec)
  const shell = find('exec_command', 'cmd') ?? find('shell_command', 'command')
  if (shell) return codexStages(shell, find('apply_patch'))
  const tools = TOOLS.find(({ read, path }) => find(read, path))
  if (!tools) throw new Error(`No tool reads files among ${offers.map(({ name }) => name)}.`)
  return fileStages(tools, offers, directory)
}

/** Stages for Codex if it offers the tool `exec`, which runs JavaScript that calls the other tools. */
function execStages(offer: Offer): Stage[] {
  const stage = (code: string, ...expected: string[]) => ({
    calls: [{ offer, input: freeText(offer, code) }],
    expected,
  })
  const run = (cmd: string) => `tools.exec_command(${JSON.stringify({ cmd })})`
  return [
    stage(`text(await Promise.all([${run('cat a.txt')}, ${run('cat b.txt')}]))`, 'alpha', 'beta'),
    stage(`text(await tools.apply_patch(${JSON.stringify(PATCH)}))`),
    stage(`text(await ${run(COMMAND)})`),
  ]
}

/** Codex offers the tool `apply_patch` only for models in its list. For other models, Codex extracts the patch from a shell command. */
function codexStages(shell: Offer, patch: Offer | undefined): Stage[] {
  const run = (command: string) => ({
    offer: shell,
    input: { [shell.name === 'exec_command' ? 'cmd' : 'command']: command },
  })
  const edit = patch ? { offer: patch, input: freeText(patch, PATCH) } : run(`apply_patch <<'EOF'\n${PATCH}EOF`)
  return [
    { calls: [run('cat a.txt'), run('cat b.txt')], expected: ['alpha', 'beta'] },
    { calls: [edit], expected: [] },
    { calls: [run(COMMAND)], expected: [] },
  ]
}

/** Names and parameters of an agent's file tools. */
interface FileTools {
  readonly read: string
  /** Name of the read tool's parameter for the file path. */
  readonly path: string
  readonly edit: string
  readonly shell: string
  edited(path: string): Json
}

const SNAKE = (path: string) => ({ file_path: path, old_string: EDIT.before, new_string: EDIT.after })
const CAMEL = (path: string) => ({ filePath: path, oldString: EDIT.before, newString: EDIT.after })
const TOOLS: readonly FileTools[] = [
  // One row per agent: Claude Code, opencode, qwen-code and Continue.
  { read: 'Read', path: 'file_path', edit: 'Edit', shell: 'Bash', edited: SNAKE },
  { read: 'read', path: 'filePath', edit: 'edit', shell: 'bash', edited: CAMEL },
  { read: 'read_file', path: 'file_path', edit: 'edit', shell: 'run_shell_command', edited: SNAKE },
  { read: 'Read', path: 'filepath', edit: 'Edit', shell: 'Bash', edited: SNAKE },
]

function fileStages(
  { read, path, edit, shell, edited }: FileTools,
  offers: readonly Offer[],
  directory: string,
): Stage[] {
  const call = (name: string, input: Json) => ({ offer: needed(offers, name), input })
  const [first, second] = Object.keys(FILES).map((name) => join(directory, name)) as [string, string]
  // Claude Code offers the tool WebSearch only after a call of ToolSearch.
  const hasSearch = offers.some(({ name }) => name === 'ToolSearch')
  const search = hasSearch ? [call('ToolSearch', { query: 'select:WebSearch' })] : []
  const stages: Stage[] = [
    {
      calls: [call(read, { [path]: first }), call(read, { [path]: second }), ...search],
      expected: ['alpha', 'beta'],
    },
    { calls: [call(edit, edited(first))], expected: [] },
    { calls: [call(shell, { command: COMMAND, description: 'Joins the files' })], expected: [] },
  ]
  const web = offers.find(({ name }) => name === 'WebSearch')
  if (web) stages.push({ calls: [{ offer: web, input: { query: 'Greek letters' } }], expected: [SEARCH_MARK] })
  const mcp = offers.find(({ parameters }) => parameters.includes('mark'))
  if (mcp) stages.push({ calls: [{ offer: mcp, input: { mark: MCP_MARK } }], expected: [MCP_MARK] })
  return stages
}

function needed(offers: readonly Offer[], name: string): Offer {
  const offer = offers.find((offer) => offer.name === name)
  if (!offer) throw new Error(`No tool '${name}' among ${offers.map(({ name }) => name)}.`)
  return offer
}

/** Returns the input of a tool that takes a text. If the tool is a function, then the text is its first parameter. */
function freeText({ isCustom, parameters }: Offer, text: string): string | Json {
  return isCustom ? text : { [parameters[0] ?? 'input']: text }
}
