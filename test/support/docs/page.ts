/** Runs the commands and programs of a documentation page in order, as if a reader copied them. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { ENVIRONMENT } from '../processes/environment.ts'
import { LAUNCHER } from '../processes/sluice.ts'
import { TEST_KEY } from '../stack.ts'
import type { Block } from './blocks.ts'

/** Working directory of the pages. The directory is below node_modules, so that programs can import the packages of the project. */
const DIRECTORY = join(import.meta.dirname, '../../../node_modules/.cache/sluice-docs')
const PAGE_MS = 280_000
/** Maximum characters of a block's output in an error message. */
const TAIL = 2_000

/** Values that replace the addresses, ports and ids that pages contain. */
export interface World {
  /** Base URL of the service; replaces http://127.0.0.1:8080. */
  readonly url: string
  readonly dataDir: string
  /** Free port that replaces port 9000, on which webhook receivers in pages listen. */
  readonly port: number
  /** Directory with a `python3` that has the packages of the SDKs. */
  readonly bin: string
  /** Directory of the files that pages mention, such as speech.wav. */
  readonly files: string
  /** Id of an ended job. The id replaces JOB_ID until a command of the page submits another job. */
  readonly jobId: string
}

/** Result of a page: the block that failed, if any, and the output of the last block. */
export interface PageRun {
  readonly failed: string | undefined
  readonly output: string
}

/**
 * Runs the blocks of a page in one shell and stops at the first failure. `curl` runs with an option that makes an error response a failure. In
 * commands, JOB_ID, KEY_ID and SECRET_ID are replaced by the ids that earlier commands created.
 */
export async function runPage(blocks: readonly Block[], world: World): Promise<PageRun> {
  await mkdir(DIRECTORY, { recursive: true })
  const directory = await mkdtemp(join(DIRECTORY, 'page-'))
  try {
    return await runIn(directory, blocks, world)
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}

async function runIn(directory: string, blocks: readonly Block[], world: World): Promise<PageRun> {
  await cp(world.files, directory, { recursive: true })
  await mkdir(join(directory, 'bin'))
  await mkdir(join(directory, 'ids'))
  await writeFile(join(directory, 'ids/JOB_ID'), world.jobId)
  for (const [name, script] of Object.entries(COMMANDS)) {
    await writeFile(join(directory, 'bin', name), script)
    await chmod(join(directory, 'bin', name), 0o755)
  }
  const steps = await Promise.all(blocks.map((block, index) => stepOf(block, index, directory, world)))
  await writeFile(join(directory, 'page.sh'), `set -euo pipefail\n${steps.join('\n')}\necho end > at\n`)
  const child = spawn('bash', ['page.sh'], {
    cwd: directory,
    detached: true,
    stdio: 'ignore',
    env: {
      ...ENVIRONMENT,
      PATH: [join(directory, 'bin'), world.bin, ENVIRONMENT.PATH].join(':'),
      HOME: directory,
      SLUICE_URL: world.url,
      SLUICE_API_KEY: TEST_KEY,
      DATA_DIR: world.dataDir,
      MODELS_FILE: join(world.dataDir, 'models.yaml'),
      NODE: process.execPath,
      LAUNCHER,
      SANDBOX: 'zygote',
      IDS: join(directory, 'ids'),
      PYTHONDONTWRITEBYTECODE: '1',
    },
  })
  const timer = setTimeout(() => child.pid && process.kill(-child.pid, 'SIGKILL'), PAGE_MS)
  await once(child, 'exit')
  clearTimeout(timer)
  endAll(child.pid)
  const at = (await readFile(join(directory, 'at'), 'utf8')).trim()
  if (at === 'end') return { failed: undefined, output: '' }
  const output = await readFile(join(directory, `${at}.out`), 'utf8').catch(() => '')
  return { failed: blocks[Number(at)]?.place, output: output.slice(-TAIL) }
}

/** Ends background processes of the page, such as webhook receivers. */
function endAll(pid: number | undefined): void {
  try {
    if (pid) process.kill(-pid, 'SIGKILL')
  } catch {
    // All background processes have already ended.
  }
}

/** Returns the shell code that runs a block. A program in another language is written to a file first. */
async function stepOf(block: Block, index: number, directory: string, world: World): Promise<string> {
  const here = (text: string) =>
    text
      .replaceAll('127.0.0.1:8080', new URL(world.url).host)
      .replaceAll(/\b9000\b/g, String(world.port))
      .replaceAll(/sk-local-development|sk-…/g, TEST_KEY)
  const [before, code, after] = [block.before.join('\n'), block.code, block.after.join('\n')].map(here)
  let commands = [before, code, after].join('\n')
  if (block.file) {
    await writeFile(join(directory, block.file), code ?? '')
    commands = [before, after].join('\n')
  } else if (block.language !== 'sh') {
    const file = `${index}.${block.language === 'js' ? 'mjs' : 'py'}`
    await writeFile(join(directory, file), commands)
    commands = `${block.language === 'js' ? '"$NODE"' : 'python3'} ${file}`
  }
  return `echo ${index} > at; rm -f ids/*.used; OUTPUT=$PWD/${index}.out\n{\n:\n${commands}\n} > "$OUTPUT" 2>&1`
}

/** Shell code that replaces JOB_ID, KEY_ID and SECRET_ID in the arguments by the newest id. Within one block an id does not change. */
const REPLACE = `#!/usr/bin/env bash
args=()
for arg in "$@"; do
  for word in JOB_ID KEY_ID SECRET_ID; do
    [[ $arg == *$word* ]] && touch "$IDS/$word.used" && arg=\${arg//$word/$(cat "$IDS/$word")}
  done
  args+=("$arg")
done
note() { [[ -z $2 || -e $IDS/$1.used ]] || echo "$2" > "$IDS/$1"; }
`

/** Scripts that run instead of the commands `curl` and `sluice` of a page. The scripts replace ids in arguments, and record the ids in responses. */
const COMMANDS: Readonly<Record<string, string>> = {
  curl: `${REPLACE}
PATH=\${PATH#*:}
headers=$(mktemp)
curl --fail-with-body --silent --show-error --max-time 200 --dump-header "$headers" "\${args[@]}" | tee "$IDS/said"
code=\${PIPESTATUS[0]}
note KEY_ID "$(grep -ao '"id":"key_[[:alnum:]]*' "$IDS/said" | head -1 | cut -d'"' -f4)"
note JOB_ID "$(sed -n 's/^location: .*\\(job_[[:alnum:]]*\\).*/\\1/pI' "$headers" | tail -1)"
rm -f "$headers"
exit $code
`,
  sluice: `${REPLACE}
"$NODE" "$LAUNCHER" "\${args[@]}" | tee "$IDS/said"
code=\${PIPESTATUS[0]}
for made in JOB_ID:job KEY_ID:key SECRET_ID:whs; do
  note "\${made%:*}" "$(grep -o "\\"id\\":\\"\${made#*:}_[[:alnum:]]*" "$IDS/said" | tail -1 | cut -d'"' -f4)"
done
exit $code
`,
  node: `${REPLACE}
exec "$NODE" "\${args[@]}"
`,
  npx: '#!/usr/bin/env bash\nexec "$@"\n',
}
