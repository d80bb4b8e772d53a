import { readdir, readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'
import { splitJargon } from './jargon.ts'

/*
 * Documents of the corpus: prose with facts, on four subjects, from Debian packages under free licences (GPL-2+ or CC-BY-SA, GPL-2, PSF,
 * public domain). Tables of contents, symbol lists and references of commands and modules are omitted. The name of a document contains the
 * name of its package and is unique.
 */

export interface Package {
  readonly name: string
  readonly read: (unpacked: string) => Promise<Map<string, string>>
}

export const PACKAGES: readonly Package[] = [
  { name: 'debian-handbook', read: readHandbook },
  { name: 'git-doc', read: readGit },
  { name: 'python3.11-doc', read: readPython },
  { name: 'jargon-text', read: readJargon },
]

const HANDBOOK = 'usr/share/doc/debian-handbook/html/en-US'
const GIT = 'usr/share/doc/git-doc'
const PYTHON = 'usr/share/doc/python3.11/html'
const PYTHON_PARTS = ['whatsnew', 'howto', 'faq', 'tutorial']
const JARGON = 'usr/share/doc/jargon-text/jargon.txt.gz'
/**
 * Matches the guides and file format descriptions of git. Files that start with `git-` are manual pages of commands, except the article
 * git-bisect-lk2009.
 */
const GIT_GUIDE = /^(?:git[a-z][\w-]*|My\w+|ReviewingGuidelines|SubmittingPatches|user-manual|git-bisect-lk2009)\.html$/
const NOT_GUIDES = new Set(['gitk.html', 'gitweb.html', 'gitweb.conf.html'])

async function readHandbook(unpacked: string): Promise<Map<string, string>> {
  const names = (await list(unpacked, HANDBOOK, /\.html$/)).filter((name) => name !== 'index.html')
  return await readAll(unpacked, HANDBOOK, names, (name) => `debian-handbook-${name.replace(/^sect\./, '')}`)
}

async function readGit(unpacked: string): Promise<Map<string, string>> {
  const guides = (await list(unpacked, GIT, GIT_GUIDE)).filter((name) => !NOT_GUIDES.has(name))
  const technical = await list(unpacked, `${GIT}/technical`, /^(?!api-index).*\.(?:html|txt)$/)
  // Most pages exist as HTML and as text. The text is read only if there is no HTML.
  const once = technical.filter(
    (name) => !technical.includes(name.replace(/\.txt$/, '.html')) || name.endsWith('.html'),
  )
  const howto = await list(unpacked, `${GIT}/howto`, /\.html$/)
  return new Map([
    ...(await readAll(unpacked, GIT, guides, (name) => (name.startsWith('git') ? name : `git-${name}`))),
    ...(await readAll(unpacked, `${GIT}/technical`, once, (name) => `git-technical-${name}`)),
    ...(await readAll(unpacked, `${GIT}/howto`, howto, (name) => `git-howto-${name}`)),
  ])
}

async function readPython(unpacked: string): Promise<Map<string, string>> {
  const parts = PYTHON_PARTS.map(async (part) => {
    const names = await list(unpacked, `${PYTHON}/${part}`, /^(?!index|changelog).*\.html$/)
    return await readAll(unpacked, `${PYTHON}/${part}`, names, (name) => `python-${part}-${name}`)
  })
  return new Map((await Promise.all(parts)).flatMap((part) => [...part]))
}

async function readJargon(unpacked: string): Promise<Map<string, string>> {
  const text = await promisify(gunzip)(await readFile(join(unpacked, JARGON)))
  return splitJargon(text.toString('utf8'))
}

async function list(unpacked: string, folder: string, wanted: RegExp): Promise<string[]> {
  const entries = await readdir(join(unpacked, folder), { withFileTypes: true })
  return entries.filter((entry) => entry.isFile() && wanted.test(entry.name)).map(({ name }) => name)
}

async function readAll(
  unpacked: string,
  folder: string,
  names: readonly string[],
  rename: (name: string) => string,
): Promise<Map<string, string>> {
  const documents = new Map<string, string>()
  for (const name of [...names].sort()) {
    documents.set(rename(basename(name)), await readFile(join(unpacked, folder, name), 'utf8'))
  }
  return documents
}
