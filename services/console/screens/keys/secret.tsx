import { useEffect, useRef } from 'preact/hooks'
import { Copy } from '#services/console/parts/copy.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import type { MadeKey } from './state.ts'

/** The secret of a new key. The API returns it once. */
export function Secret({ of, close }: { readonly of: MadeKey; readonly close: () => void }) {
  const secret = useRef<HTMLElement>(null)
  useEffect(() => secret.current?.focus(), [])
  return (
    <>
      <p class="note warn">
        <Icon name="warn" />
        <span>Copy this key now. You won’t be able to see it again.</span>
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the focus moves here, so that screen readers announce the new key. */}
      <code class="secret" ref={secret} tabIndex={0}>
        {of.secret}
      </code>
      <p class="dim">
        Key ID: <code>{of.id}</code>. Send the key as <code>Authorization: Bearer …</code>
      </p>
      <div class="actions end">
        <Copy text={of.secret} label="Copy key" />
        <button type="button" class="primary" onClick={close}>
          Done
        </button>
      </div>
    </>
  )
}
