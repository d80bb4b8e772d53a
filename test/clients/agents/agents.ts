/** Coding agents, configured as in docs/get-started/clients.md: default settings except URL, key and model. */
import { spawn } from 'node:child_process'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { readSnippets, settle } from '../page.ts'
import { ANSWER, FILES, FILES_AFTER, MCP_MARK, PROMPT, SEARCH_MARK } from './script.ts'

export interface Agent {
  /** Name of the agent and of its snippet, a shell script. */
  readonly name: string
  /** Name and exact version of the npm package of the agent. */
  readonly package: string
  /**
   * Model names to test, because the agent treats them differently. The first name is unknown to the agent. The value of each name is a text that at
   * least one tool call of the run must contain. Tool calls are compared in the form `TOOL: RESULT`.
   */
  readonly models: Readonly<Record<string, string>>
  readonly command: readonly string[]
  /** Files of the project in addition to those of every agent. */
  readonly files?: Readonly<Record<string, string>>
  /** True if the agent's next request does not contain the reasoning of the model's last response. */
  readonly dropsThoughts?: true
  /** Text of the snippet that is replaced before the snippet runs, and its replacement. */
  readonly replace?: readonly [from: string, to: string]
}

const AGENT_MS = 120_000
const OUTPUT_CHARS_MAX = 1_000_000
/**
 * Names of the MCP server and its tool. An agent joins both names with underscores to a name of 82 characters. Upstreams refuse such long
 * names, so Sluice must shorten the name in the request.
 */
const MCP_SERVER = 'marks_of_the_project'
const MCP_TOOL = 'repeat_the_mark_that_the_model_has_given_to_this_tool_of_mine'

const codex: Agent = {
  name: 'codex',
  package: '@openai/codex@0.169.0',
  models: { coder: 'exec_command: ', 'gpt-5.5': 'apply_patch: ', 'gpt-6-sol': 'exec: ' },
  command: ['codex', 'exec', '--skip-git-repo-check', '--sandbox', 'danger-full-access', PROMPT],
}

const claude: Agent = {
  name: 'claude-code',
  package: '@anthropic-ai/claude-code@2.1.332',
  models: { coder: SEARCH_MARK, 'claude-sonnet-4-5': SEARCH_MARK },
  command: ['claude', '-p', PROMPT, '--allowedTools', 'Read,Edit,Bash,WebSearch'],
}

const MCP = {
  mcp: {
    [MCP_SERVER]: {
      type: 'local',
      command: [process.execPath, join(import.meta.dirname, 'mcp-server.mjs'), MCP_TOOL],
    },
  },
}
const opencode: Agent = {
  name: 'opencode',
  package: 'opencode-ai@1.18.33',
  models: { coder: MCP_MARK },
  command: ['opencode', 'run', PROMPT],
  files: { 'opencode.json': JSON.stringify(MCP) },
}

const qwen: Agent = {
  name: 'qwen-code',
  package: '@qwen-code/qwen-code@0.15.10',
  models: { coder: 'run_shell_command: ' },
  command: ['qwen', '--yolo', '-p', PROMPT],
}

const continueCli: Agent = {
  name: 'continue',
  package: '@continuedev/cli@1.5.47',
  models: { coder: 'Bash: ' },
  dropsThoughts: true,
  command: ['cn', '--auto', '--config', '../home/.continue/config.yaml', '-p', PROMPT],
}

export const AGENTS: readonly Agent[] = [codex, claude, opencode, qwen, continueCli]

/** opencode, configured for an API other than chat completions, its default. */
export const OPENCODE_BY: Readonly<Record<'messages' | 'responses', Agent>> = {
  messages: { ...opencode, replace: ['@ai-sdk/openai-compatible', '@ai-sdk/anthropic'] },
  responses: { ...opencode, dropsThoughts: true, replace: ['@ai-sdk/openai-compatible', '@ai-sdk/openai'] },
}

/** A project directory with a home directory next to it, for one run of an agent. */
export interface Workplace extends AsyncDisposable {
  readonly directory: string
  readonly project: string
}

/** @param parent Must not be below the temporary directory, which Codex refuses as its home. */
export async function openWorkplace(parent: string): Promise<Workplace> {
  const runs = join(parent, 'runs')
  await mkdir(runs, { recursive: true })
  const directory = await mkdtemp(join(runs, 'agent-'))
  const project = join(directory, 'project')
  await mkdir(project)
  await mkdir(join(directory, 'home'))
  for (const [name, text] of Object.entries(FILES)) await writeFile(join(project, name), text)
  return {
    directory,
    project,
    [Symbol.asyncDispose]: () => rm(directory, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 }),
  }
}

/**
 * Runs an agent on the scripted task in its project.
 *
 * @param bin Directory of the agent's command
 * @throws Error if the agent fails, or if the project has unexpected files afterwards
 */
export async function runAgent(
  agent: Agent,
  bin: string,
  workplace: Workplace,
  service: { readonly url: string; readonly model: string },
): Promise<void> {
  const snippet = readSnippets().find(({ name }) => name === agent.name)
  if (!snippet) throw new Error(`docs/get-started/clients.md has no snippet '${agent.name}'.`)
  const [from, to] = agent.replace ?? ['', '']
  const setUp = settle(snippet.code.replace(from, to), service.url, service.model)
  await writeFile(join(workplace.directory, 'page.sh'), setUp)
  for (const [name, text] of Object.entries(agent.files ?? {})) await writeFile(join(workplace.project, name), text)
  const output = await execute(agent, bin, workplace)
  if (!output.includes(ANSWER)) throw new Error(`${agent.name} did not print '${ANSWER}': ${output.slice(-2_000)}`)
  for (const [name, text] of Object.entries(FILES_AFTER)) {
    const found = await readFile(join(workplace.project, name), 'utf8').catch(() => undefined)
    if (found !== text) throw new Error(`${name} contains ${JSON.stringify(found)} instead of ${JSON.stringify(text)}.`)
  }
}

function execute({ name, command }: Agent, bin: string, { directory, project }: Workplace): Promise<string> {
  const env = {
    PATH: `${bin}:${process.env.PATH}`,
    HOME: join(directory, 'home'),
    LANG: 'C.UTF-8',
    DO_NOT_TRACK: '1',
    DISABLE_TELEMETRY: '1',
    DISABLE_ERROR_REPORTING: '1',
    DISABLE_AUTOUPDATER: '1',
    OPENCODE_DISABLE_AUTOUPDATE: '1',
    OPENCODE_DISABLE_MODELS_FETCH: '1',
  }
  const script = '. ../page.sh; exec "$@"'
  // The agent gets a process group of its own, so that the shells and MCP servers that it starts can be killed together with it.
  const options = { cwd: project, env, detached: true }
  const child = spawn('sh', ['-ec', script, 'sh', ...command], { ...options, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  const collect = (chunk: Buffer) => {
    output = (output + chunk).slice(-OUTPUT_CHARS_MAX)
  }
  child.stdout.on('data', collect)
  child.stderr.on('data', collect)
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => killGroup(child.pid), AGENT_MS)
    child.on('error', reject)
    child.on('exit', () => killGroup(child.pid))
    child.on('close', (code, signal) => {
      clearTimeout(timer)
      if (code === 0) return resolve(output)
      const why = signal ? `stopped by ${signal}, after at most ${AGENT_MS / 1_000} s` : `exit code ${code}`
      reject(new Error(`${name}: ${why}: ${output.trim().slice(-2_000)}`))
    })
  })
}

function killGroup(pid: number | undefined): void {
  try {
    if (pid) process.kill(-pid, 'SIGKILL')
  } catch (error) {
    // ESRCH: the process group no longer exists, so there is nothing to kill.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
