import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.XAConnection;
import javax.sql.XADataSource;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.postgresql.xa.PGXADataSource;

/** pgjdbc's data sources, in which a call can be held: the process then waits to be killed. */
final class Branches {
    private final AtomicInteger calls = new AtomicInteger();
    private volatile String held = "";

    XADataSource open(String url) {
        PGXADataSource source = new PGXADataSource();
        source.setUrl(url);
        return wrap(XADataSource.class, source);
    }

    /** From now on the second call of this method, of any branch, never begins. */
    void holdAtSecond(String method) {
        calls.set(0);
        held = method;
    }

    private void pass(String method) {
        if (method.equals(held) && calls.incrementAndGet() == 2) {
            Transfers.answer("held");
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** All as it is, but for the connections of a source and the resource of a connection. */
    private <T> T wrap(Class<T> type, Object inner) {
        return type.cast(Proxy.newProxyInstance(Branches.class.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> {
            try {
                Object result = method.invoke(inner, arguments);
                return switch (method.getName()) {
                    case "getXAConnection" -> wrap(XAConnection.class, result);
                    case "getXAResource" -> new Resource((XAResource) result);
                    default -> result;
                };
            } catch (InvocationTargetException error) {
                throw error.getCause();
            }
        }));
    }

    /** Not serializable, as pgjdbc's own: a manager must find the branch again by its Xid. */
    private final class Resource implements XAResource {
        private final XAResource inner;

        Resource(XAResource inner) {
            this.inner = inner;
        }

        @Override
        public int prepare(Xid xid) throws XAException {
            pass("prepare");
            return inner.prepare(xid);
        }

        @Override
        public void commit(Xid xid, boolean onePhase) throws XAException {
            pass("commit");
            inner.commit(xid, onePhase);
        }

        @Override
        public void start(Xid xid, int flags) throws XAException {
            inner.start(xid, flags);
        }

        @Override
        public void end(Xid xid, int flags) throws XAException {
            inner.end(xid, flags);
        }

        @Override
        public void rollback(Xid xid) throws XAException {
            inner.rollback(xid);
        }

        @Override
        public void forget(Xid xid) throws XAException {
            inner.forget(xid);
        }

        @Override
        public Xid[] recover(int flag) throws XAException {
            return inner.recover(flag);
        }

        @Override
        public boolean isSameRM(XAResource other) {
            return this == other;
        }

        @Override
        public int getTransactionTimeout() throws XAException {
            return inner.getTransactionTimeout();
        }

        @Override
        public boolean setTransactionTimeout(int seconds) throws XAException {
            return inner.setTransactionTimeout(seconds);
        }
    }
}
