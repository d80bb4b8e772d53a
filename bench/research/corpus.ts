import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { z } from 'zod'
import { PACKAGES, type Package } from './packages.ts'
import { textOf } from './text.ts'

/*
 * The fixed corpus that the evaluation of deep research runs on: one flat folder of documents, fetched once from Debian
 * packages into the cache of this machine. The texts are not in the repository; manifest.json says which they are.
 */

const MANIFEST = new URL('./manifest.json', import.meta.url)
const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice')
/** Another layout gets another number. */
const PLACE = join(CACHE, 'research-corpus-1')
/** Packages that somebody has put here are taken before any is downloaded. */
const BY_HAND = join(CACHE, 'research-packages')
const VERSIONS = 'versions.json'
const FETCH_MS = 300_000
const SHOWN = 5
const run = promisify(execFile)

/** Which documents the questions were written for. */
const Manifest = z.strictObject({
  packages: z.record(z.string(), z.string()).describe('The version of each package.'),
  documents: z.record(z.string(), z.string()).describe("The SHA-256 of each document's file, by its name."),
})
type Manifest = z.infer<typeof Manifest>

/** The documents on this machine. */
export interface Corpus {
  /** The folder of the documents and nothing else. */
  readonly directory: string
  /** How it differs from the manifest; empty when it does not. */
  readonly differences: readonly string[]
  /** The text of each document by its name, white space normalised. */
  readonly texts: ReadonlyMap<string, string>
}

/**
 * Opens the corpus; fetches it first where it is not there yet (some 50 MB).
 *
 * @param anyVersion Takes other versions of the packages too, on which the questions may have other answers.
 * @throws Error when a package cannot be fetched, or is not of the manifest's version
 */
export async function openCorpus({ anyVersion }: { readonly anyVersion: boolean }): Promise<Corpus> {
  if (!(await stat(PLACE).catch(() => undefined))) await fetchCorpus()
  const directory = join(PLACE, 'documents')
  const differences = differ(Manifest.parse(JSON.parse(await readFile(MANIFEST, 'utf8'))), await describe())
  if (differences.length > 0 && !anyVersion) {
    const shown = differences.slice(0, SHOWN).join('; ')
    throw new Error(
      `the corpus is not the one that the questions were written for (${differences.length} differences: ${shown}). ` +
        `Put the packages of bench/research/manifest.json into ${BY_HAND} (old ones are kept by snapshot.debian.org) ` +
        `and remove ${PLACE}; or pass --any-version.`,
    )
  }
  const texts = new Map<string, string>()
  for (const name of (await readdir(directory)).sort()) {
    texts.set(name, textOf(name, await readFile(join(directory, name), 'utf8')))
  }
  return { directory, differences, texts }
}

/** Makes the corpus of this machine the one that is expected. */
export async function writeManifest(): Promise<void> {
  await writeFile(MANIFEST, `${JSON.stringify(await describe(), null, 2)}\n`)
}

async function describe(): Promise<Manifest> {
  const documents: Record<string, string> = {}
  for (const name of (await readdir(join(PLACE, 'documents'))).sort()) {
    const content = await readFile(join(PLACE, 'documents', name))
    documents[name] = createHash('sha256').update(content).digest('hex')
  }
  return Manifest.parse({ packages: JSON.parse(await readFile(join(PLACE, VERSIONS), 'utf8')), documents })
}

function differ(expected: Manifest, found: Manifest): string[] {
  const differences: string[] = []
  for (const [name, version] of Object.entries(expected.packages)) {
    const here = found.packages[name]
    if (here !== version) differences.push(`${name} is ${here ?? 'missing'} instead of ${version}`)
  }
  for (const name of new Set([...Object.keys(expected.documents), ...Object.keys(found.documents)])) {
    if (found.documents[name] === undefined) differences.push(`${name} is missing`)
    else if (expected.documents[name] === undefined) differences.push(`${name} is additional`)
    else if (expected.documents[name] !== found.documents[name]) differences.push(`${name} has another text`)
  }
  return differences
}

async function fetchCorpus(): Promise<void> {
  await mkdir(CACHE, { recursive: true })
  const workDir = await mkdtemp(`${PLACE}-`)
  try {
    const built = join(workDir, 'built')
    await mkdir(join(built, 'documents'), { recursive: true })
    const versions: Record<string, string> = {}
    for (const each of PACKAGES) versions[each.name] = await fetchPackage(each, workDir, join(built, 'documents'))
    await writeFile(join(built, VERSIONS), JSON.stringify(versions))
    // Another run may have been quicker.
    await rename(built, PLACE).catch(() => {})
  } finally {
    await rm(workDir, { recursive: true, force: true })
  }
}

/** Puts a package's documents into the folder, and gives its version. */
async function fetchPackage({ name, read }: Package, workDir: string, documents: string): Promise<string> {
  const file = join(workDir, `${name}.deb`)
  await getArchive(name, workDir, file)
  const unpacked = join(workDir, name)
  await use('dpkg-deb', ['-x', file, unpacked], workDir)
  for (const [document, content] of await read(unpacked)) {
    // Two documents of one name would leave one of them out without a word.
    await writeFile(join(documents, document), content, { flag: 'wx' })
  }
  return (await use('dpkg-deb', ['-f', file, 'Version'], workDir)).trim()
}

async function getArchive(name: string, workDir: string, file: string): Promise<void> {
  const byHand = await findArchive(BY_HAND, name)
  if (byHand) return await copyFile(byHand, file)
  try {
    await use('apt-get', ['download', name], workDir)
  } catch (error) {
    throw new Error(
      `the package ${name} cannot be downloaded: it needs Debian's apt-get, with a list of packages that has it ` +
        `(apt-get update). Elsewhere put ${name}_<version>_all.deb of packages.debian.org into ${BY_HAND}; ` +
        'dpkg-deb unpacks it.',
      { cause: error },
    )
  }
  const downloaded = await findArchive(workDir, name)
  if (!downloaded) throw new Error(`apt-get has downloaded no ${name}_….deb`)
  await rename(downloaded, file)
}

async function findArchive(directory: string, name: string): Promise<string | undefined> {
  const files = await readdir(directory).catch(() => [])
  const found = files.find((file) => file.startsWith(`${name}_`) && file.endsWith('.deb'))
  return found && join(directory, found)
}

async function use(command: string, args: readonly string[], cwd: string): Promise<string> {
  try {
    return (await run(command, args, { cwd, timeout: FETCH_MS })).stdout
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === 'ENOENT'
    throw new Error(missing ? `${command} is not installed` : `${command} has failed: ${(error as Error).message}`, {
      cause: error,
    })
  }
}
